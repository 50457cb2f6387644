"""What a method adds to a local step and to the upload, against another on the same net and data.

One process, one thread, interleaved repetitions; median and quartiles. A repetition is a whole
visit as a run plays it (message in, training, reply), in round 2, when every term has what it
needs; its time is divided by the number of batches. Seconds are the processor's, which on one
thread are those of a clock on an idle machine: what else runs does not count.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --method moon --base fedavg --backbone cnn --batch 16
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace

from common import Work, header, interleave, ratios, session

from fedshift.base.process import one_thread, tune_process
from fedshift.core.message import Broadcast, Update
from fedshift.engine.round import play_round
from fedshift.transports.inprocess import InProcess


@dataclass(frozen=True)
class Pair:
    """Two method expressions, and where they meet."""

    method: str
    base: str
    backbone: str
    px: int
    batch: int


PAIRS = (
    Pair("f2dc", "fedavg", "resnet10", 32, 64),
    Pair("fdse", "fedbn", "alexnet-bn", 64, 50),  # the paper's inputs are 256 px: --px 256
)


class Visit:
    """One site's visit in round 2, again and again; round 1 has been played by both sites."""

    def __init__(self, method: str, pair: Pair, steps: int) -> None:
        shape = (3, pair.px, pair.px)
        work = Work(
            f"overhead-{pair.px}-{pair.batch}-{steps}",
            pair.backbone,
            shape,
            10,
            2,
            steps,
            pair.batch,
        )
        opened = session(work, method, "inprocess", 1, allow=("client_val", "domain_ids"))
        assert isinstance(opened.transport, InProcess)
        play_round(opened.server, opened.transport, opened.record)
        opened.server.round += 1
        self.worker = opened.transport.worker
        self.messages: Broadcast = opened.server.broadcast("train", min(opened.server.roster))
        self.reply: Update | None = None

    def __call__(self) -> None:
        """From the message to the reply; state of round 1 is read again each time."""
        self.reply = self.worker.visit(self.messages)

    @property
    def upload(self) -> int:
        """Bytes of the reply."""
        assert self.reply is not None
        return self.reply.nbytes


def measure(pair: Pair, steps: int, repeats: int) -> None:
    """Print both methods' milliseconds per step and upload, then the ratios."""
    tune_process()
    with one_thread():
        visits = {name: Visit(name, pair, steps) for name in (pair.method, pair.base)}
        seconds = interleave(visits, repeats, time.process_time)
    print(f"{pair.method} against {pair.base}: {pair.backbone}, {pair.px} px, batch {pair.batch}")
    for name, visit in visits.items():
        low, middle, high = statistics.quantiles([1000 * s / steps for s in seconds[name]], n=4)
        row(
            name,
            f"{middle:.1f} ms per step ({low:.1f} to {high:.1f})",
            f"{visit.upload / 1e6:.2f} MB",
        )
    middle, low, high = ratios(seconds, pair.base)[pair.method]
    upload = visits[pair.method].upload / visits[pair.base].upload
    row("ratio", f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{upload:.3f}")


def row(name: str, duration: str, upload: str) -> None:
    """One line of the table."""
    print(f"  {name:<20} {duration:<38} upload {upload}", flush=True)


def options() -> argparse.Namespace:
    """Which pairs, and how long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--method", help="an expression; with --base, in place of the two pairs")
    parser.add_argument("--base", default="fedavg")
    parser.add_argument("--backbone", default="resnet10")
    parser.add_argument("--px", type=int, help="side of the inputs, of every pair")
    parser.add_argument("--batch", type=int, help="batch size, of every pair")
    parser.add_argument("--steps", type=int, default=3, help="batches per visit")
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


def main() -> None:
    """The two pairs, or the one that is asked for."""
    given = options()
    print(header())
    pairs = PAIRS
    if given.method:
        pairs = (Pair(given.method, given.base, given.backbone, 32, 64),)
    for pair in pairs:
        changed = replace(pair, px=given.px or pair.px, batch=given.batch or pair.batch)
        measure(changed, given.steps, given.repeats)


if __name__ == "__main__":
    main()
