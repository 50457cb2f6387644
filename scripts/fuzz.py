"""Runs the fuzz targets of tests/fuzz one after another; writes what was found and how much ran.

``python scripts/fuzz.py [TARGET...] [--seconds 1800] [--corpus DIR]``, or ``make fuzz``. Each
target has a process of its own: atheris (extra ``fuzz``) chooses by coverage which inputs to change
further; without it the same changes are made to the kept inputs at random. The corpus folder, by
default ``.fuzz``, holds what has been reached, so that a later run goes on from there, and findings
as files. ``summary.json`` and ``summary.md`` in it add up the runs since it was made. Exit code 1
if anything was found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "fuzz"
# Targets, and the packages of ours whose branches guide the choice of inputs.
NAMES = {
    "message": "base core",
    "envelope": "base core transports",
    "checkpoint": "base runs core.state",
    "run-config": "base core runs",
    "run-lines": "base runs report.results evaluate",
    "dataset-index": "base data.store data.library data.catalogue",
    "run-file": "base core runs experiment",
    "image": "data.sources",
    "table": "data.sources",
    "arrays": "data.sources",
    "site-policy": "base deploy runs core.scenario",
}
LIBRARIES = ["PIL", "pydicom", "tomllib"]  # written in Python, so guided by their branches as well
STUCK = 60  # seconds by the clock after which atheris ends an input that never ends
MEMORY = 1536  # MB that a process may have in all
Row = dict[str, Any]


def main(args: list[str]) -> int:
    """Run every target, or the ones named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", default=list(NAMES), metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=1800, help="for each target")
    parser.add_argument("--corpus", type=Path, default=ROOT / ".fuzz")
    parser.add_argument("--seed", type=int, default=0, help="0: another one at each run")
    parser.add_argument("--play", action="store_true", help="one target in this process")
    told = parser.parse_args(args)
    if unknown := sorted(set(told.targets) - set(NAMES)):
        parser.error(f"no target is called {unknown[0]!r}; there are {', '.join(NAMES)}")
    if told.play:
        return play(told.targets[0], told.corpus, told.seconds, told.seed)
    rows = [in_process(name, told.corpus, told.seconds, told.seed) for name in told.targets]
    return 1 if any(row["findings"] for row in rows) else 0


def in_process(name: str, corpus: Path, seconds: int, seed: int) -> Row:
    """Run one target in a process of its own; what came of it is printed and added up."""
    folder = corpus / name
    (folder / "findings").mkdir(parents=True, exist_ok=True)
    (folder / "played.json").unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).absolute()), name, "--play"]
    command += ["--seconds", str(seconds), "--corpus", str(corpus), "--seed", str(seed)]
    source = os.environ.get("PYTHONPATH") or str(ROOT / "src")
    began = time.monotonic()
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    lines = [line for line in child.stderr or () if OF_INTEREST.search(line)][-40:]
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    row = {
        "target": name,
        "date": datetime.now(UTC).date().isoformat(),
        "executions": executions(folder, lines),
        "seconds": round(time.monotonic() - began),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime),
        "peak_mb": round(usage.ru_maxrss / 1024),
        "findings": sorted(p.name for p in (folder / "findings").iterdir() if p.suffix != ".txt"),
        "ended": child.returncode,
    }
    if child.returncode not in (0, 1):
        (folder / "log.txt").write_text("".join(lines))
    print(line_of(row), flush=True)
    add_up(corpus, row)
    return row


OF_INTEREST = re.compile(r"^(#\d|stat::|Done|==\d|SUMMARY|ERROR|Traceback|\w*Error|  File)")


def executions(folder: Path, lines: list[str]) -> int:
    """How many inputs were read: as atheris says, or as our own loop wrote down."""
    told = folder / "played.json"
    if told.exists():
        return int(json.loads(told.read_text())["executions"])
    found = [int(m.group(1)) for line in lines if (m := re.search(r"(?:units: +|^#)(\d+)", line))]
    return max(found, default=0)


def line_of(row: Row) -> str:
    """What a person wants to know of one target."""
    told = ", ".join(
        f"{sum(name.startswith(kinds) for name in row['findings'])} {plural}"
        for plural, kinds in KINDS.items()
    )
    ended = "" if row["ended"] == 0 else f", process ended with {row['ended']}"
    return (
        f"{row['target']:14} {row['executions']:>10,} executions in {row['seconds']} s, {told}, "
        f"peak {row['peak_mb']} MB{ended}"
    )


KINDS = {"crashes": ("crash",), "hangs": ("hang", "timeout"), "too large": ("memory", "oom")}


def add_up(corpus: Path, row: Row) -> None:
    """Add a run to ``summary.json`` and write ``summary.md`` anew."""
    path = corpus / "summary.json"
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    rows.append(row)
    path.write_text(json.dumps(rows, indent=1))
    lines = ["| target | executions | minutes | processor minutes | findings | peak MB | last |"]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for name in dict.fromkeys(one["target"] for one in rows):
        of = [one for one in rows if one["target"] == name]
        lines.append(
            f"| {name} | {sum(o['executions'] for o in of):,} "
            f"| {sum(o['seconds'] for o in of) / 60:.1f} "
            f"| {sum(o['processor_seconds'] for o in of) / 60:.1f} "
            f"| {len(of[-1]['findings'])} | {max(o['peak_mb'] for o in of)} | {of[-1]['date']} |"
        )
    (corpus / "summary.md").write_text("\n".join(lines) + "\n")


def play(name: str, corpus: Path, seconds: int, seed: int) -> int:
    """One target in this process, by atheris or by the plain loop."""
    sys.path.insert(0, str(FOLDER))
    if importlib.util.find_spec("atheris") is None:
        return by_loop(name, corpus, seconds, seed)
    return by_atheris(name, corpus, seconds, seed)


def started(name: str, corpus: Path) -> tuple[Any, Callable[[bytes], None]]:
    """A target, and what reads an input and keeps it if it is a finding."""
    logging.getLogger("fedshift").setLevel(logging.CRITICAL)
    targets = importlib.import_module("fuzz_targets")
    target = targets.TARGETS[name]
    seen: set[str] = set()

    def one(blob: bytes) -> None:
        try:
            target.run(blob)
        except targets.Finding as finding:
            if finding.where not in seen:
                seen.add(finding.where)
                keep(corpus / name / "findings", blob, finding)

    return target, one


def keep(folder: Path, blob: bytes, finding: Any) -> None:
    """Write a finding: the input, and what it caused; one file for each place in the code."""
    mark = hashlib.blake2b(finding.where.encode(), digest_size=6).hexdigest()
    (folder / f"{finding.kind}-{mark}").write_bytes(blob)
    (folder / f"{finding.kind}-{mark}.txt").write_text(f"{finding}\n")


def by_atheris(name: str, corpus: Path, seconds: int, seed: int) -> int:
    """Let coverage choose; ends the process."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["fedshift", *LIBRARIES], exclude=passed_over(name)):
        target, one = started(name, corpus)
    mutations = importlib.import_module("fuzz_mutations")
    reached, whole = corpus / name / "corpus", corpus / name / "whole"
    for folder in (reached, whole):
        folder.mkdir(exist_ok=True)
    for blob in target.whole():
        (whole / hashlib.sha1(blob, usedforsecurity=False).hexdigest()).write_bytes(blob)
    kept = FOLDER / "corpus" / name

    def changed(blob: bytes, size: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.2:
            return bytes(atheris.Mutate(blob, size))
        return mutations.mutated(blob, rng, target.kind)[:size]

    options = [f"-max_total_time={seconds}", f"-timeout={STUCK}", f"-rss_limit_mb={MEMORY}"]
    options += ["-print_final_stats=1", "-report_slow_units=600", "-max_len=65536", f"-seed={seed}"]
    options += ["-len_control=0", f"-artifact_prefix={corpus / name / 'findings'}/", "-reload=0"]
    folders = [str(f) for f in (reached, whole, kept) if f.is_dir()]
    atheris.Setup([sys.argv[0], *options, *folders], one, custom_mutator=changed)
    atheris.Fuzz()
    return 0


def passed_over(name: str) -> list[str]:
    """Modules of ours that have nothing to do with a target: watching them takes time."""
    modules = [
        ".".join(p.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for p in (ROOT / "src" / "fedshift").rglob("*.py")
    ]
    watched = tuple(f"fedshift.{package}" for package in NAMES[name].split())
    return [module for module in modules if not module.startswith(watched)]


def by_loop(name: str, corpus: Path, seconds: int, seed: int) -> int:
    """Without atheris: whole and kept inputs, changed at random, until the time is over."""
    target, one = started(name, corpus)
    mutations = importlib.import_module("fuzz_mutations")
    kept = [p.read_bytes() for p in sorted((FOLDER / "corpus" / name).glob("*"))]
    inputs, count = [*target.whole(), *kept], 0
    rng, end = random.Random(seed or time.time_ns()), time.monotonic() + seconds
    for blob in inputs:
        one(blob)
    while time.monotonic() < end:
        one(mutations.mutated(rng.choice(inputs), rng, target.kind))
        count += 1
    told = {"executions": count + len(inputs)}
    (corpus / name / "played.json").write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
