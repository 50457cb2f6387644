"""FedAvg's round in fedshift, in process and in a pool, against the bare loop on the same steps.

Prints ratios to the bare single-thread NCHW loop (lower is faster), which runs in a process of its
own as plain Python starts it: median and quartiles of interleaved samples, each of as many rounds
as the bare loop plays in a second: workers that have slept while others were timed need a few
milliseconds to come back. ``python benchmarks/speed.py A C`` takes some of the works only.
"""

from __future__ import annotations

import sys
import time
from functools import partial

from common import WORKS, Program, apart, bare, header, interleave, ratios, rounds, session

from fedshift.base.process import one_thread, tune_process

REPEATS = 15, 25  # of long samples, and of those of about a second


def again(play: Program, count: int) -> None:
    """Several rounds in a row."""
    for _ in range(count):
        play()


def per_second(play: Program) -> int:
    """How many rounds fit into a second, at least one."""
    play()
    began = time.perf_counter()
    play()
    return max(1, round(1 / (time.perf_counter() - began)))


def main(wanted: list[str]) -> None:
    """Every work, every program."""
    print(header())
    tune_process()
    with one_thread():
        for work in WORKS:
            if wanted and work.name not in wanted:
                continue
            here = session(work, "fedavg", "inprocess", 1)
            pool = session(work, "fedavg", "pool", 2)
            programs = {
                "bare loop": apart(partial(bare, work)),
                "in process": rounds(here),
                "pool of 2": rounds(pool),
            }
            count = per_second(programs["bare loop"])
            repeated = {name: partial(again, play, count) for name, play in programs.items()}
            times = interleave(repeated, REPEATS[count > 1])
            pool.transport.close()
            for name, (middle, low, high) in ratios(times, "bare loop").items():
                print(f"{work.name:<5} {name:<12} {middle:5.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(sys.argv[1:])
