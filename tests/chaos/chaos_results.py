"""What a finished run directory holds, in a form in which two of them can be compared.

It reads the files by itself, with nothing of fedshift: a mistake of ours in reading must not hide
one in writing. Times, and what privacy an interrupted run has spent, may differ.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

TIMES = ("seconds", "seconds_scoring", "seconds_waited")
EARLIER = "checkpoints/clients", "checkpoints/personal"


def tensors(path: Path) -> dict:
    """Names, dtypes, shapes and digests of the tensors of a safetensors file."""
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    head = json.loads(blob[8 : 8 + size])
    meta = head.pop("__metadata__", {})
    about = json.loads(meta["fedshift"])
    found = {"meta": without(about["meta"], "seal"), "order": about["order"]}
    for name, entry in head.items():
        begin, end = entry["data_offsets"]
        digest = hashlib.sha256(blob[8 + size + begin : 8 + size + end]).hexdigest()
        found[name] = [entry["dtype"], entry["shape"], digest]
    return found


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without(row: dict, *keys: str) -> dict:
    return {k: v for k, v in row.items() if k not in keys}


def content(run: Path, *, untroubled: bool) -> dict:
    """Everything that is promised to be the same.

    ``untroubled`` says that no message was lost: then the ledger is the same as well.
    """
    found: dict = {}
    for path in sorted(run.rglob("*.safetensors")):
        name = str(path.relative_to(run))
        if not name.startswith(EARLIER):
            found[name] = tensors(path)
    for store in EARLIER:
        for folder in sorted((run / store).glob("*")):
            newest = max((int(p.stem) for p in folder.glob("*.safetensors")), default=None)
            if newest is not None:
                found[f"{store}/{folder.name}"] = newest, tensors(folder / f"{newest}.safetensors")
    metrics = rows(run / "metrics.jsonl")
    found["metrics"] = [without(row, "privacy", *TIMES) for row in metrics]
    summary = json.loads((run / "summary.json").read_text())
    found["summary"] = without(summary, "privacy", "seconds", "lost", "bytes")
    config = json.loads((run / "config.json").read_text())
    config["run"]["scenario"].pop("summary", None)  # words for people
    found["config.json"] = config
    for name in ("checkpoints/roster.json", "best/model.json"):
        found[name] = json.loads((run / name).read_text())
    if untroubled:
        found["bytes"] = summary["bytes"]
        found["ledger"] = [without(row, "guarantee") for row in rows(run / "ledger.jsonl")]
    return found


def differences(reference: Path, run: Path, *, untroubled: bool) -> list[str]:
    """Where a run differs from the one that nothing happened to."""
    try:
        a = content(reference, untroubled=untroubled)
        b = content(run, untroubled=untroubled)
    except (OSError, ValueError, KeyError) as error:
        return [f"cannot be read: {error!r}"]
    odd = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]
    return [f"{name}{where(a.get(name), b.get(name))}" for name in odd]


def where(a, b) -> str:
    """The first place where two values differ, and the values there."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *b]:
            if a.get(key) != b.get(key):
                return f".{key}{where(a.get(key), b.get(key))}"
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y:
                return f".{i}{where(x, y)}"
    return f": {str(a)[:60]} / {str(b)[:60]}"


def undercounted(run: Path, journal: list[list[str]]) -> list[str]:
    """Clients that were asked to train more often than ``privacy.jsonl`` tells."""
    file = run / "privacy.jsonl"
    if not file.exists():
        return []
    asked: dict[str, int] = {}
    for row in rows(file):
        if row["event"] == "asked":
            asked[row["client"]] = asked.get(row["client"], 0) + 1
    sent: dict[str, int] = {}
    for words in journal:
        if words[0] == "train":
            sent[words[2]] = sent.get(words[2], 0) + 1
    return [client for client, times in sorted(sent.items()) if times > asked.get(client, 0)]


def untold(run: Path, journal: list[list[str]]) -> list[tuple[str, ...]]:
    """Losses that the ledger does not tell of, and those that it invents."""
    told = [row for row in rows(run / "ledger.jsonl") if row["direction"] == "lost"]
    listed = Counter((str(row["round"]), row["task"], row["client"]) for row in told)
    happened = Counter(tuple(words[1:4]) for words in journal if words[0] == "lost")
    return sorted(((listed - happened) + (happened - listed)).elements())
