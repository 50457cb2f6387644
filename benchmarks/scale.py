"""Cost of a round against the clients that exist, and memory against those that take part.

Time: 50 clients a round out of 100, 1,000 and 10,000 registered ones, a run on disk as a user has
it (checkpoint, ledger), interleaved; ratios to 100 registered. FedAvg, and FDSE, which keeps
something for every client on both sides. Memory: the growth of the process's peak over one
round of ResNet-10 with 10, 100 and 1,000 participants whose replies are summed as they arrive; each
in a process of its own.

    python benchmarks/scale.py time
    python benchmarks/scale.py memory [--backbone resnet18]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Work, header, interleave, ratios, scenario

from fedshift.base.process import one_thread, tune_process
from fedshift.core.config import configure
from fedshift.experiment.session import Session, prepare

REGISTERED = (100, 1_000, 10_000)
PARTICIPANTS = (10, 100, 1_000)
PER_ROUND = 50


def opened(work: Work, method: str, registered: int, folder: Path) -> Session:
    """A run on disk after its enrolment; nobody is scored."""
    chosen = scenario(work, registered=registered, evaluate_every=10_000)
    config, whole = configure(method, chosen)
    return prepare(config, whole, folder / f"{method}-{registered}")


def time_rounds(method: str, repeats: int) -> None:
    """Print the ratio of a round's time to that with the fewest registered."""
    work = Work("scale", "mlp", (64,), 2, PER_ROUND, 8, 16, (("hidden", 128), ("features", 64)))
    tune_process()
    with tempfile.TemporaryDirectory() as folder, one_thread():
        programs = {}
        for registered in REGISTERED:
            began = time.perf_counter()
            session = opened(work, method, registered, Path(folder))
            programs[str(registered)] = session.advance
            print(f"{method}: {registered} enrolled in {time.perf_counter() - began:.1f} s")
        times = interleave(programs, repeats)
    for name, (middle, low, high) in ratios(times, str(REGISTERED[0])).items():
        print(f"{method:<8} {name:>6} registered {middle:5.2f}   ({low:.2f} to {high:.2f})")


def peak(participants: int, backbone: str) -> None:
    """Print the growth of this process's peak memory over one round, in megabytes."""
    work = Work(f"memory-{backbone}", backbone, (3, 8, 8), 7, participants, 1, 4)
    config, whole = configure("fedavg", scenario(work))
    tune_process()
    with one_thread():
        session = prepare(config, whole)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        session.advance()
        session.advance()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print((after - before) / 1024, after / 1024)


def memory(backbone: str) -> None:
    """Peaks of rounds with few and with many participants, each in a process of its own."""
    found = {}
    for participants in PARTICIPANTS:
        command = [sys.executable, __file__, "peak", str(participants), "--backbone", backbone]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        growth, whole = map(float, out.split())
        found[participants] = whole
        print(
            f"{backbone} {participants:>5} participants: peak {whole:.0f} MB, round {growth:.0f} MB"
        )
    first, last = found[PARTICIPANTS[0]], found[PARTICIPANTS[-1]]
    print(f"{backbone} peak of {PARTICIPANTS[-1]} over {PARTICIPANTS[0]}: {last / first:.2f}")


def main() -> None:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("time", "memory", "peak"), nargs="?", default="time")
    parser.add_argument("participants", type=int, nargs="?", default=10)
    parser.add_argument("--backbone", default="resnet10")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    if given.what == "peak":
        peak(given.participants, given.backbone)
        return
    print(header())
    if given.what == "memory":
        memory(given.backbone)
        return
    for method in ("fedavg", "fdse"):
        time_rounds(method, given.repeats)


if __name__ == "__main__":
    main()
