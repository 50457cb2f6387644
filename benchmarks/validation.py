"""What checking replies costs: the same rounds with the checks and without them, interleaved.

    python benchmarks/validation.py            # every work of speed.py, FedAvg and SCAFFOLD
    python benchmarks/validation.py C          # some of the works only
    python benchmarks/validation.py pool       # one of the two transports only

Without: the server takes every reply, and a site does not look at its own payload.
The last column is the share of a round's time that the server spends in its checks, added up inside
one run: an upper bound of what they cost, which needs no comparison of two noisy times.

One process, in seconds of the processor: both halves. A pool of two, by the clock: the server's
half, which every reply waits for; the workers check their own payload in both cases. Median and
quartiles of the time with the checks over the time without them, within a repeat.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from common import WORKS, Program, Work, interleave, ratios, rounds, session

from fedshift.base.process import tune_process
from fedshift.core.payload import Declared
from fedshift.engine import replies

REPEATS = 15
TRANSPORTS = ("inprocess", "pool")
METHODS = ("fedavg", "scaffold")  # without payload, and with one of the model's size


def passes(*_: object, **__: object) -> str:
    """In place of a check: nothing is wrong, and nothing is looked at."""
    return ""


def compare(work: Work, method: str, transport: str) -> None:
    """Print the ratio of rounds with the checks to those without."""
    workers = 2 if transport == "pool" else 1
    play = rounds(session(work, method, transport, workers))
    play()

    def bare() -> None:
        with (
            mock.patch.object(replies, "why_rejected", passes),
            mock.patch.object(Declared, "problem", passes),
        ):
            play()

    programs: dict[str, Program] = {"without": bare, "with": play}
    clock = time.perf_counter if transport == "pool" else time.process_time
    middle, low, high = ratios(interleave(programs, REPEATS, clock), "without")["with"]
    spread = f"({low:.3f} to {high:.3f})"
    line = f"{work.name:<6} {method:<10} {transport:<10} {middle:5.3f}   {spread}"
    print(f"{line}   {100 * share(play, clock):4.1f} %", flush=True)


def share(play: Program, clock: Callable[[], float]) -> float:
    """Time in the server's checks over the time of the round, over five rounds."""
    checked, spent = replies.why_rejected, 0.0

    def timed(*args: Any, **options: Any) -> str:
        nonlocal spent
        began = clock()
        found = checked(*args, **options)
        spent += clock() - began
        return found

    with mock.patch.object(replies, "why_rejected", timed):
        began = clock()
        for _ in range(5):
            play()
        return spent / (clock() - began)


def main(args: list[str]) -> None:
    """Each work, in process and in a pool."""
    tune_process()
    chosen = [w for w in WORKS if w.name in args] or WORKS
    transports = [t for t in TRANSPORTS if t in args] or TRANSPORTS
    for work in chosen:
        for method in METHODS:
            for transport in transports:
                compare(work, method, transport)


if __name__ == "__main__":
    main(sys.argv[1:])
