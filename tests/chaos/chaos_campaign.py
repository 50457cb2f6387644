"""The long run of chaos: many cases, one after another, with a file of results.

``scripts/chaos.py`` calls :func:`main`. Results are appended case by case, so that a campaign that
is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import chaos_attempts
from chaos_cases import FAMILIES, TRANSPORTS, Chaos

import fedshift.testing
import fedshift.transports.preload  # noqa: F401  every method, once, before the forks
from fedshift.core.registry import METHODS
from fedshift.transports.flower import grid  # noqa: F401  imported once, before the forks

COUNTS = {"kills": 48, "mixed": 21, "damage": 36}  # cases per transport


def main(args) -> int:
    """Play cases; 0 if every promise was kept."""
    chosen = parsed(args)
    known = sorted(METHODS.entries())
    methods = chosen.methods.split(",") if chosen.methods else known
    cases = chosen.cases or campaign(chosen.scale, chosen.families.split(","))
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    if chosen.cases:
        results.unlink(missing_ok=True)
    done = read(results)
    left = [case for case in cases if case not in {row["case"] for row in done}]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if any("/pool/" in case for case in left):
        chaos_attempts.start_fork_server()
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=memory()))
    try:
        chaos = Chaos(folder, methods, chosen.seed)
        for number, case in enumerate(left):
            began = time.monotonic()
            row = dataclasses.asdict(chaos.play(case)) | {"wall": time.monotonic() - began}
            done.append(row)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            tell(row, number + 1, len(left), loud=bool(chosen.cases))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (out / "results.md").write_text(table(done, chosen.seed))
    print(table(done, chosen.seed))
    return 1 if any(row["problems"] for row in done) else 0


def parsed(args):
    parser = argparse.ArgumentParser(prog="chaos", description="See scripts/chaos.py.")
    parser.add_argument("cases", nargs="*", help="such as kills/pool/17; by default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of cases")
    parser.add_argument("--families", default=",".join(FAMILIES), help="separated by commas")
    parser.add_argument("--methods", default="", help="separated by commas; by default all")
    parser.add_argument("--out", default="chaos", help="where the results go")
    return parser.parse_args(args)


def campaign(scale: float, families: list[str]) -> list[str]:
    """All cases, families and transports in turn, so that a part of it is a fair sample."""
    columns = [
        [f"{family}/{transport}/{i}" for i in range(max(1, round(COUNTS[family] * scale)))]
        for transport in TRANSPORTS
        for family in families
    ]
    rows = itertools.zip_longest(*columns)
    return [case for row in rows for case in row if case is not None]


def memory() -> str | None:
    """A folder in memory, where there is one: the disk has no part in this."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def read(path: Path) -> list[dict]:
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def tell(row: dict, number: int, of: int, *, loud: bool) -> None:
    state = "BROKEN" if row["problems"] else "kept"
    print(f"{number}/{of} {row['case']} {row['method']} {state} {row['wall']:.1f} s", flush=True)
    for line in [*(row["story"] if loud else ()), *row["problems"]]:
        print(f"    {line}", flush=True)


def table(rows: list[dict], seed: int) -> str:
    """The results as Markdown."""
    head = (
        "| transport | runs | rounds | kill -9 | SIGTERM | workers | messages | damaged | broken |"
    )
    lines = [f"seed {seed}, commit {commit()}", "", head, "|---" * 9 + "|"]
    for transport in (*TRANSPORTS, "all"):
        own = [r for r in rows if transport in (r["case"].split("/")[1], "all")]
        sums = [sum(r[key] for r in own) for key in ("rounds", "kills", "terminations")]
        sums += [sum(r[key] for r in own) for key in ("workers", "messages")]
        sums += [sum(len(r["damages"]) for r in own), sum(bool(r["problems"]) for r in own)]
        lines.append(f"| {transport} | {len(own)} | " + " | ".join(map(str, sums)) + " |")
    methods = len({row["method"] for row in rows})
    lines += ["", f"{methods} methods; {sum(r['wall'] for r in rows):.0f} s"]
    return "\n".join(lines) + "\n"


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"
