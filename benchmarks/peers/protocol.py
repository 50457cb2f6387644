"""How a peer talks to ``run.py``: a line of standard input asks, a line of standard output answers.

    -> ready                       when everything up to round 1 is done
    round -> 1.234567              seconds of one round: local training and aggregation
    score -> 0.123456 0.9876       loss and accuracy of the global model, outside the timed part
    quit                           the process ends

Two peers call us instead of being called; they use :class:`Line` itself, the others :func:`serve`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TextIO

import torch
from safetensors.torch import load_file
from torch import Tensor
from work import WORKS, Work, score

State = Mapping[str, Tensor]


@cache
def answers() -> TextIO:
    """Standard output as ``run.py`` reads it; what else is printed from now on is for the log."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return out


def given() -> tuple[Work, dict[str, Tensor]]:
    """The work and the initial weights that the command line names; call it first."""
    answers()
    torch.set_num_threads(1)
    return WORKS[sys.argv[1]], load_file(sys.argv[2])


class Line:
    """The line to ``run.py``."""

    def __init__(self, work: Work, model: Callable[[], State]) -> None:
        self.work, self.model = work, model
        self.began = 0.0

    def say(self, *values: object) -> None:
        """One line."""
        print(*values, file=answers(), flush=True)

    def next_round(self) -> bool:
        """Answer until a round is asked for, whose clock starts then; False at the end."""
        for line in iter(sys.stdin.readline, ""):
            if line.strip() == "score":
                self.say(*score(self.work, self.model()))
            elif line.strip() == "round":
                self.began = time.perf_counter()
                return True
            else:
                break
        return False

    def round_done(self, ended: float | None = None) -> None:
        """Tell the seconds from when the round was asked for to ``ended``, or to now."""
        self.say(f"{(ended or time.perf_counter()) - self.began:.6f}")


def serve(work: Work, play: Callable[[], object], model: Callable[[], State]) -> None:
    """Play rounds on command."""
    line = Line(work, model)
    line.say("ready")
    while line.next_round():
        play()
        line.round_done()
