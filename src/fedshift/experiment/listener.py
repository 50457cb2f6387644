"""Who hears what a run does: progress bars, logs, and processes that relay it to their parent.

A session calls the hooks of one :class:`Listener`; the default is silent. A listener must never
change a run: what it raises ends it.
"""

from __future__ import annotations

import time

from fedshift.base.logs import log
from fedshift.core.config import RunConfig
from fedshift.core.message import Lost, Update
from fedshift.engine.replies import describe_loss
from fedshift.report.results import RunResult
from fedshift.runs.record import Row


class Listener:
    """Hears what a run does; the default is silent."""

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Before the first round that is played."""

    def replied(self, update: Update) -> None:
        """A client has answered."""

    def lost(self, lost: Lost) -> None:
        """A client has not answered, or its answer was refused."""

    def round_done(self, row: Row) -> None:
        """A round is on disk."""

    def finished(self, result: RunResult) -> None:
        """The summary is on disk."""


class LogListener(Listener):
    """One line per round in the log ``fedshift``, at level INFO; losses are warnings."""

    def __init__(self) -> None:
        self.label, self.rounds = "", 0
        self.began = time.monotonic()

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Before the first round that is played."""
        self.label, self.rounds = config.label, config.scenario.rounds
        where = config.scenario_label
        log.info("%s in %s: %s clients, from round %s", self.label, where, clients, first_round)

    def lost(self, lost: Lost) -> None:
        """A client has not answered, or its answer was refused."""
        log.warning("%s", describe_loss(lost))

    def round_done(self, row: Row) -> None:
        """A round is on disk."""
        spent = time.monotonic() - self.began
        head = f"{self.label}: round {row['round']} of {self.rounds}"
        log.info("%s  %s  %.0f s", head, describe_round(row), spent)

    def finished(self, result: RunResult) -> None:
        """The summary is on disk."""
        log.info("finished: %r", result)


def describe_round(row: Row) -> str:
    """Losses by name, then test accuracies by protocol."""
    losses = [f"{name} {value:.3f}" for name, value in row["losses"].items()]
    scores = [f"{name} {v['test']['avg']:.1f}" for name, v in row.get("scores", {}).items()]
    return "  ".join(losses + scores)
