"""Who hears what a run does: progress bars, logs, notebooks and processes that relay it."""

from __future__ import annotations

from fedshift.core.config import RunConfig
from fedshift.core.message import Lost, Update
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
