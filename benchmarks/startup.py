"""How soon the command line answers: against importing torch, interleaved, each in a new process.

Prints seconds (median) and the ratio to ``python -c "import torch"``, which everything would cost
that is not careful about its imports. ``list`` reads its cache, as it does but for the first time.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from common import header, interleave, ratios

REPEATS = 9
PROGRAMS = {
    "import torch": ["-c", "import torch"],
    "plain python": ["-c", "pass"],
    "import fedshift": ["-c", "import fedshift"],
    "fedshift --help": ["-m", "fedshift", "--help"],
    "fedshift run --help": ["-m", "fedshift", "run", "--help"],
    "fedshift list": ["-m", "fedshift", "list"],
}


def call(words: list[str]) -> None:
    """A new interpreter."""
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Every program."""
    print(header())
    times = interleave({name: partial(call, w) for name, w in PROGRAMS.items()}, REPEATS)
    for name, (middle, low, high) in ratios(times, "import torch").items():
        seconds = sorted(times[name])[len(times[name]) // 2]
        print(f"{name:<20} {seconds:5.2f} s   {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
