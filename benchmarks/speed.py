"""FedAvg's round in fedshift, in process and in a pool, against the bare loop on the same steps.

Prints ratios to the bare single-thread NCHW loop (lower is faster): median and quartiles of
interleaved rounds. ``python benchmarks/speed.py A C`` takes some of the works only.
"""

from __future__ import annotations

import sys

from common import WORKS, bare, header, interleave, ratios, rounds, session

from fedshift.machine import one_thread

REPEATS = 9


def main(wanted: list[str]) -> None:
    """Every work, every program."""
    print(header())
    with one_thread():
        for work in WORKS:
            if wanted and work.name not in wanted:
                continue
            here = session(work, "fedavg", "inprocess", 1)
            pool = session(work, "fedavg", "pool", 2)
            times = interleave(
                {
                    "bare loop": bare(work),
                    "in process": rounds(here),
                    "pool of 2": rounds(pool),
                },
                REPEATS,
            )
            pool.transport.close()
            for name, (middle, low, high) in ratios(times, "bare loop").items():
                print(f"{work.name:<5} {name:<12} {middle:5.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(sys.argv[1:])
