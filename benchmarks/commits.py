"""Whether a change made rounds slower: two commits side by side, samples interleaved in one run.

    python benchmarks/commits.py OLD            # against the working tree
    python benchmarks/commits.py OLD NEW A C    # some of the works only

Each commit is imported from its own files in processes of its own, with the packages of this
interpreter. Per work, median and quartiles of NEW's time over OLD's within a repeat, in process and
in a pool of two; for the Flower adapter in memory the same, in processor seconds. Lower is faster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import WORKS, interleave, ratios

ROOT = Path(__file__).parent.parent
REPEATS = 7, 21  # of samples of one long round, and of those of about a second
PLAYER = """
import sys, time
import torch
torch.set_num_threads(1)
import fedshift
if "tune_process" in fedshift.__all__:
    fedshift.tune_process()
else:  # commits before 0.2 tuned every process that ran anything
    from fedshift.machine import keep_memory
    keep_memory()
from common import WORKS, rounds, session
kind, name = sys.argv[1:3]
if kind == "flower":
    import flower
    options = flower.Options(transport=flower.in_memory)
    play, clock = rounds(flower.opened("fedavg", options)), time.process_time
else:
    work = next(w for w in WORKS if w.name == name)
    opened = session(work, "fedavg", kind, 2 if kind == "pool" else 1)
    play, clock = rounds(opened), time.perf_counter
play()
began = time.perf_counter()
play()
count = max(1, round(1 / (time.perf_counter() - began)))
print(count, flush=True)
for line in sys.stdin:
    began = clock()
    for _ in range(int(line)):
        play()
    print(clock() - began, flush=True)
"""


class Player:
    """One commit's program in a process of its own; ``seconds`` of the last sample."""

    def __init__(self, tree: Path, kind: str, name: str) -> None:
        environment = os.environ | {
            "PYTHONPATH": f"{tree / 'src'}:{tree / 'benchmarks'}",
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PLAYER, kind, name],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.count = int(self._read())
        self.seconds = 0.0

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def play(self, count: int) -> None:
        """As many rounds."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        self.seconds += float(self._read())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@contextmanager
def checked_out(commits: list[str]) -> Iterator[list[Path]]:
    """The files of each commit in a folder of their own; without a second one, the working tree."""
    with tempfile.TemporaryDirectory() as folder:
        trees = []
        for number, commit in enumerate(commits):
            tree = Path(folder) / str(number)
            tree.mkdir()
            made = subprocess.run(
                ["git", "archive", "--format=tar", commit],
                cwd=ROOT,
                check=True,
                capture_output=True,
            )
            subprocess.run(["tar", "-x", "-C", str(tree)], input=made.stdout, check=True)
            trees.append(tree)
        yield trees + [ROOT] * (2 - len(trees))


def compare(trees: list[Path], kind: str, name: str) -> None:
    """Print the ratio of the second tree's rounds to the first's."""
    old, new = (Player(tree, kind, name) for tree in trees)
    count = old.count

    def clock() -> float:
        return old.seconds + new.seconds

    programs = {"old": lambda: old.play(count), "new": lambda: new.play(count)}
    middle, low, high = ratios(interleave(programs, REPEATS[count > 1], clock), "old")["new"]
    for player in (old, new):
        player.close()
    print(f"{name:<6} {kind:<10} {middle:5.3f}   ({low:.3f} to {high:.3f})", flush=True)


def main(args: list[str]) -> None:
    """Every work in process and in a pool, then the adapter."""
    names = [work.name for work in WORKS]
    wanted = [a for a in args if a in [*names, "flower"]] or [*names, "flower"]
    commits = [a for a in args if a not in [*names, "flower"]]
    if not 1 <= len(commits) <= 2:
        print(__doc__)
        raise SystemExit(2)
    with checked_out(commits) as trees:
        print(f"{commits[-1] if len(commits) == 2 else 'working tree'} against {commits[0]}")
        for name in wanted:
            for kind in ("flower",) if name == "flower" else ("inprocess", "pool"):
                compare(trees, kind, name)


if __name__ == "__main__":
    main(sys.argv[1:])
