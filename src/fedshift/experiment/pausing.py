"""Runs that pause after a round and can go on later, with the bits of an uninterrupted run.

``experiment.compare`` pauses the jobs that say so. A paused run is a run directory without a
summary: the same command, or a later job, continues it after its last round. What a paused run has
reached is read from its metrics, up to the round of the pause and no further, so that a run that
has gone on since then looks as it did.
"""

from __future__ import annotations

from pathlib import Path

from fedshift.core.config import RunConfig
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.listener import Listener, Through
from fedshift.report.results import RunResult
from fedshift.runs.record import Row, read_lines
from fedshift.runs.summary import summarise


class Paused(Exception):  # noqa: N818  no error: the round was asked for
    """Ends a run after a round; its rounds stay on disk."""


class Pausing(Through):
    """Passes everything on, and ends the run after the round ``until``."""

    def __init__(self, inner: Listener, until: int) -> None:
        super().__init__(inner)
        self.until = until

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Pass it on; the rounds after the pause are not shown."""
        self.inner.started(shortened(config, self.until), clients, first_round)

    def expected(self, estimate: Estimate) -> None:
        """Leave it out: it is about all rounds."""

    def round_done(self, row: Row) -> None:
        """Pass it on, and pause if it was the last."""
        self.inner.round_done(row)
        if row["round"] >= self.until:
            raise Paused


def shortened(config: RunConfig, until: int | None) -> RunConfig:
    """The configuration as a display should count it: with the rounds up to the pause."""
    if until is None:
        return config
    short = config.scenario.model_copy(update={"rounds": until})
    return config.model_copy(update={"scenario": short})


def so_far(config: RunConfig, path: Path | None, until: int) -> RunResult | None:
    """What a run in ``path`` had reached after a round; None if it has not come so far."""
    rows = read_lines(path / "metrics.jsonl") if path is not None else []
    rows = [row for row in rows if row["round"] <= until]
    if not rows or rows[-1]["round"] < until:
        return None
    seconds = sum(row["seconds"] for row in rows)
    return RunResult(config, rows, summarise(config, rows, seconds=seconds), path)
