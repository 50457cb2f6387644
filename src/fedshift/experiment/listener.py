"""Listeners: how progress bars, logs and parent processes learn what a run is doing.

A session calls the hooks of one :class:`Listener`; the default does nothing. A listener must never
change a run, and an exception that it raises ends the run.
"""

from __future__ import annotations

import time

from fedshift.base.logs import log
from fedshift.base.times import duration
from fedshift.core.config import RunConfig
from fedshift.core.message import Lost, Update
from fedshift.engine.replies import describe_loss
from fedshift.experiment.expectation import Estimate
from fedshift.report.results import RunResult
from fedshift.report.tables import size
from fedshift.runs.record import Row


class Listener:
    """Hooks that a session calls while a run is under way; the default does nothing."""

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Before the first round of this process; a resumed run does not begin at round 1."""

    def replied(self, update: Update) -> None:
        """A client has replied, to training or to any other task."""

    def lost(self, lost: Lost) -> None:
        """A client has not replied, or its reply was rejected."""

    def round_done(self, row: Row) -> None:
        """A round has been committed; ``row`` is its line of the metrics."""

    def expected(self, estimate: Estimate) -> None:
        """After the first scored round: what the run takes in all."""

    def finished(self, result: RunResult) -> None:
        """All rounds are done and the summary has been written."""


class Through(Listener):
    """Passes every call on to another listener; the base of those that watch a run on its way."""

    def __init__(self, inner: Listener) -> None:
        self.inner = inner

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Pass it on."""
        self.inner.started(config, clients, first_round)

    def replied(self, update: Update) -> None:
        """Pass it on."""
        self.inner.replied(update)

    def lost(self, lost: Lost) -> None:
        """Pass it on."""
        self.inner.lost(lost)

    def round_done(self, row: Row) -> None:
        """Pass it on."""
        self.inner.round_done(row)

    def expected(self, estimate: Estimate) -> None:
        """Pass it on."""
        self.inner.expected(estimate)

    def finished(self, result: RunResult) -> None:
        """Pass it on."""
        self.inner.finished(result)


class Clock:
    """How long the rest of a run will take, from the rounds that this process has played."""

    def __init__(self) -> None:
        self.began, self.first = time.monotonic(), 1

    def start(self, first_round: int) -> None:
        """The first round of this process is about to begin."""
        self.began, self.first = time.monotonic(), first_round

    def left(self, round_: int, rounds: int) -> str:
        """The time left after a round, as text; empty after the last."""
        each = (time.monotonic() - self.began) / max(1, round_ - self.first + 1)
        return f"about {duration(each * (rounds - round_))} left" if round_ < rounds else ""


def describe_estimate(found: Estimate, processes: int = 1) -> str:
    """One line of text: time, bytes, memory and disk of a run in all."""
    together = max(1, min(processes, found.clients))
    parts = [
        f"about {duration(found.seconds / together)} for {found.rounds} rounds",
        f"{size(found.up)} up, {size(found.down)} down",
        f"{size(found.memory)} of memory",
        f"{size(found.disk)} on disk",
    ]
    return "; ".join(parts)


class LogListener(Listener):
    """One line per round in the log ``fedshift``, at level INFO; losses are warnings."""

    def __init__(self) -> None:
        self.label, self.rounds = "", 0
        self.clock = Clock()

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Log method, scenario, number of clients and first round."""
        self.label, self.rounds = config.label, config.scenario.rounds
        self.clock.start(first_round)
        where = config.scenario_label
        log.info("%s in %s: %s clients, from round %s", self.label, where, clients, first_round)

    def lost(self, lost: Lost) -> None:
        """Log a warning: who was lost, when and why."""
        log.warning("%s", describe_loss(lost))

    def round_done(self, row: Row) -> None:
        """Log losses and accuracies of the round, the time since the start and the time left."""
        spent = time.monotonic() - self.clock.began
        left = self.clock.left(row["round"], self.rounds)
        head = f"{self.label}: round {row['round']} of {self.rounds}"
        times = f"{spent:.0f} s" + (f", {left}" if left else "")
        log.info("%s  %s  %s", head, describe_round(row), times)

    def expected(self, estimate: Estimate) -> None:
        """Log what the run takes in all."""
        log.info("%s: %s", self.label, describe_estimate(estimate))

    def finished(self, result: RunResult) -> None:
        """Log the result."""
        log.info("finished: %r", result)


def describe_round(row: Row) -> str:
    """One line of text: losses by name, test accuracies by protocol, whose weight was bounded."""
    losses = [f"{name} {value:.3f}" for name, value in row["losses"].items()]
    scores = [f"{name} {v['test']['avg']:.1f}" for name, v in row.get("scores", {}).items()]
    bounded = [f"weight of {client} bounded" for client in row.get("capped", {})]
    return "  ".join(losses + scores + bounded)
