"""Runs benchmarks one after another and keeps what they print in RESULTS.md, one section each.

    python benchmarks/results.py            # the short set, about half an hour on two idle cores
    python benchmarks/results.py speed      # some of it
    python benchmarks/results.py --all      # with memory of large cohorts and the peers

Sections that are not run keep their last result.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SHORT = {
    "startup": "startup.py",
    "images": "images.py",
    "tables": "tables.py",
    "validation": "validation.py pool",
    "speed": "speed.py",
    "overhead": "overhead.py",
    "aggregate": "aggregate.py",
    "aggregate-4": "aggregate.py 4",
    "cohort": "cohort.py",
    "scale": "scale.py time",
    "flower": "flower.py",
}
LONG = {
    "flower-ray": "flower.py --ray --repeats 5",
    "deployment": "deployment.py",
    "memory": "scale.py memory",
    "memory-resnet18": "scale.py memory --backbone resnet18",
    "peers": "peers/run.py",
    "serving": "serving.py",
}
INTRO = """# Results

What `make bench` and its longer parts printed last: hardware, versions and commit with each.
Ratios within one run: lower is faster. docs/performance.md says what they mean.
"""


def sections() -> dict[str, str]:
    """What is in the file, by name."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    parts = re.split(r"^## (\S+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def measure(command: str) -> str:
    """A section: when, what was typed, what it printed."""
    words = [sys.executable, *command.split()]
    found = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{command} failed:\n{found.stderr}")
    day = dt.datetime.now(tz=dt.UTC).date()
    return f"\n{day}, `python benchmarks/{command}`\n\n```text\n{found.stdout.strip()}\n```\n\n"


def main(words: list[str]) -> None:
    """Run what is named, and write the file after each."""
    known = SHORT | LONG
    names = list(known) if "--all" in words else words or list(SHORT)
    for name in names:
        if name not in known:
            raise SystemExit(f"no benchmark is called {name!r}; known: {', '.join(known)}")
        print(f"{name} ...", flush=True)
        held = sections() | {name: measure(known[name])}
        ordered = [n for n in known if n in held]
        RESULTS.write_text(INTRO + "".join(f"\n## {n}\n{held[n].rstrip()}\n" for n in ordered))
        print(held[name])


if __name__ == "__main__":
    main(sys.argv[1:])
