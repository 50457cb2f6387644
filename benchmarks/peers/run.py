"""FedAvg in fedshift and in its peers, side by side, against the bare PyTorch loop.

Each peer is a process that is started once, says when it is ready and then plays rounds on
command; rounds of all are interleaved, one at a time. Printed and written for each work: median
and quartiles of the ratio to the bare single-thread NCHW loop within a repeat, the same ratio of
processor time, start-up (seconds from the start of the process to the end of its first round, less
a usual round), and the global model's loss and accuracy after the same number of rounds.

    python benchmarks/peers/run.py
    python benchmarks/peers/run.py A C --peers bare fedshift-pool pfl --repeats 11 --out peers.md
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import processor
from environments import HERE, PEERS, USUAL, Peer, make, variables
from work import WORKS, Work

sys.path.append(str(HERE.parent))
from common import header

BASE = "bare"
TOLERANCE = 1e-5  # between losses that differ by rounding alone


class PeerError(RuntimeError):
    """A peer ended, or did not answer in time."""


@dataclass
class Running:
    """A peer's process and what it has told so far."""

    peer: Peer
    process: subprocess.Popen[bytes]
    log: Path
    patience: float
    startup: float = 0.0  # to the end of round 1
    seconds: list[float] = field(default_factory=list)
    processor: float = 0.0  # seconds of all counted rounds
    loss: float | None = None
    accuracy: float | None = None
    failure: str = ""

    def answer(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], self.patience)
        line = self.process.stdout.readline().decode().strip() if ready else ""
        if not line:
            last = (self.log.read_text(errors="replace").strip() or "no word").splitlines()[-1]
            raise PeerError(f"{'ended' if ready else f'silent for {self.patience:.0f} s'}: {last}")
        return line

    def ask(self, command: str) -> str:
        """Its answer to a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        return self.answer()

    def play(self, *, counted: bool) -> None:
        """One round."""
        before = processor.seconds(self.process.pid)
        seconds = float(self.ask("round"))
        if counted:
            self.seconds.append(seconds)
            self.processor += processor.seconds(self.process.pid) - before

    def close(self) -> None:
        """Let it end by itself, or else end it and what it started."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start(name: str, work: Work, given: argparse.Namespace, scratch: Path) -> Running:
    """A peer that has played its first round, or the reason why it has not."""
    peer = PEERS[name]
    interpreter = make(peer.environment, given.venvs) if peer.environment else sys.executable
    weights, log = scratch / f"{work.name}.safetensors", scratch / f"{work.name}-{name}.log"
    began = time.perf_counter()
    with log.open("w") as errors:
        process = subprocess.Popen(
            [interpreter, HERE / peer.script, work.name, weights, *peer.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            env=variables(peer.environment, scratch),
            cwd=scratch,
            start_new_session=True,
        )
    running = Running(peer, process, log, given.patience)
    with failures(running):
        if (word := running.answer()) != "ready":
            raise PeerError(f"said {word!r} instead of 'ready'")
        float(running.ask("round"))
        running.startup = time.perf_counter() - began
    return running


@contextmanager
def failures(running: Running) -> Iterator[None]:
    """A peer that fails drops out with its last words; the others go on."""
    try:
        yield
    except (PeerError, OSError, ValueError) as error:
        running.failure = str(error)
        print(f"{running.peer.title} dropped out, {error}", file=sys.stderr, flush=True)


def measure(work: Work, given: argparse.Namespace, scratch: Path) -> dict[str, Running]:
    """All peers on one work."""
    export = [sys.executable, HERE / "fedshift_peer.py", work.name]
    done = subprocess.run(
        [*export, scratch / f"{work.name}.safetensors", "export"],
        check=False,
        env=variables(None, scratch),
    )
    if done.returncode:
        raise SystemExit(f"no initial weights for work {work.name}: see above")
    running: dict[str, Running] = {}
    try:
        for name in given.peers:
            running[name] = start(name, work, given, scratch)
        play(list(running.values()), given.warmup, given.repeats)
    finally:
        for one in running.values():
            one.close()
    return running


def play(peers: Sequence[Running], warmup: int, repeats: int) -> None:
    """Interleave the rounds of all, one at a time, then score every global model."""
    for repeat in range(1, warmup + repeats):  # all have played the first one
        for one in peers:
            if not one.failure:
                with failures(one):
                    one.play(counted=repeat >= warmup)
    for one in peers:
        if one.peer.scored and not one.failure:
            with failures(one):
                one.loss, one.accuracy = map(float, one.ask("score").split())


def row(work: Work, one: Running, base: Running) -> str:
    """A line of the table."""
    if one.failure or base.failure:
        return f"| {work.name} | {one.peer.title} | dropped out | | | | | |"
    own = [v / b for v, b in zip(one.seconds, base.seconds, strict=True)]
    low, middle, high = statistics.quantiles(own, n=4, method="inclusive")
    usual = statistics.median(one.seconds)
    cells = [
        f"**{middle:.2f}** ({low:.2f} to {high:.2f})",
        f"{one.processor / base.processor:.2f}" if base.processor else "",
        f"{usual:.3f} s",
        f"{one.startup - usual:.1f} s",
        f"{one.loss:.4f}" if one.loss is not None else "",
        f"{100 * one.accuracy:.1f} %" if one.accuracy is not None else "",
    ]
    return f"| {work.name} | {one.peer.title} | {' | '.join(cells)} |"


def require_agreement(running: Iterable[Running]) -> None:
    """Stop unless every global model has the same loss: one that has not did other work."""
    losses = {one.peer.title: one.loss for one in running if one.loss is not None}
    if losses and max(losses.values()) - min(losses.values()) > TOLERANCE:
        told = ", ".join(f"{title} {loss:.6f}" for title, loss in losses.items())
        raise SystemExit(f"not the same work: losses differ by more than {TOLERANCE}: {told}")


def options() -> argparse.Namespace:
    """What to measure, how often, and where things go."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    usual = [name for name in WORKS if name != "same"]
    parser.add_argument("works", nargs="*", default=usual, metavar="work", help=", ".join(WORKS))
    parser.add_argument("--peers", nargs="+", default=list(USUAL), choices=list(PEERS))
    parser.add_argument("--warmup", type=int, default=3, help="rounds that are not counted")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that are")
    parser.add_argument("--patience", type=float, default=600, help="seconds before we give up")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "fedshift-peers")
    parser.add_argument("--out", type=Path, help="a file for the table, in Markdown")
    given = parser.parse_args()
    if unknown := [name for name in given.works if name not in WORKS]:
        parser.error(f"no such work: {', '.join(unknown)}; known: {', '.join(WORKS)}")
    if given.repeats < 2 or given.warmup < 1:
        parser.error("--repeats must be at least 2 for quartiles, --warmup at least 1")
    given.peers = [BASE, *(name for name in dict.fromkeys(given.peers) if name != BASE)]
    given.venvs = given.venvs.resolve()
    return given


def main() -> None:
    """Every work, every peer."""
    given = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # peers and files go too
    lines = [
        f"{header()}; load average {os.getloadavg()[0]:.1f} at the start; "
        f"{given.warmup} rounds of warm-up, {given.repeats} counted.",
        "",
        "| work | program | ratio to the bare | processor | round | start-up | loss | accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        for name in given.works:
            running = measure(WORKS[name], given, Path(scratch))
            rows = [row(WORKS[name], one, running[BASE]) for one in running.values()]
            print("\n".join(rows), flush=True)
            lines += rows
            if given.out:  # after each work, so that a later failure loses nothing
                given.out.write_text("\n".join(lines) + "\n")
            if name == "same":
                require_agreement(running.values())


if __name__ == "__main__":
    main()
