"""Live progress of runs: rounds, clients, losses by name, accuracy, time left."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedshift.core.config import RunConfig
from fedshift.core.message import Lost, Update
from fedshift.engine.replies import told
from fedshift.experiment.listener import Listener
from fedshift.report.results import RunResult
from fedshift.runs.record import Row


class Board:
    """One line per run; plain lines now and then where the output is not a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", style="dim"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def watch(self, config: RunConfig) -> Listener:
        """The line of one run."""
        return RunLine(self, config)


class RunLine(Listener):
    """Draws one run on a board."""

    def __init__(self, board: Board, config: RunConfig) -> None:
        self.board, self.config = board, config
        self.title = f"{config.label} · {config.scenario.name} · seed {config.seed}"
        self.task: TaskID | None = None
        self.clients = self.visited = 0
        self.text = "waiting"

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Before the first round that is played."""
        self.clients = config.scenario.cohort_size(clients)
        self.task = self.board.progress.add_task(
            self.title, total=config.scenario.rounds, completed=first_round - 1, state="starting"
        )

    def replied(self, update: Update) -> None:
        """A client has answered."""
        if update.task == "train" and self.task is not None:
            self.visited += 1
            state = f"{self.visited:>2}/{self.clients} clients  {self.text}"
            self.board.progress.update(self.task, state=state)

    def lost(self, lost: Lost) -> None:
        """A client has not answered: a line of its own, on a terminal as in a log."""
        self.board.console.print(told(lost), soft_wrap=True, markup=False, highlight=False)

    def round_done(self, row: Row) -> None:
        """A round is on disk."""
        self.visited = 0
        losses = "  ".join(f"{name} {value:.3f}" for name, value in row["losses"].items())
        scores = "  ".join(
            f"{name} {both['test']['avg']:.1f}" for name, both in row.get("scores", {}).items()
        )
        self.text = f"{losses}  {scores}" if scores else losses
        if self.task is not None:
            self.board.progress.update(self.task, completed=row["round"], state=self.text)
        self._plainly(row["round"])

    def _plainly(self, round_: int) -> None:
        """Ten lines per run for logs and pipes."""
        total = self.config.scenario.rounds
        due = round_ == total or round_ % max(1, total // 10) == 0
        if due and not self.board.console.is_terminal:
            line = f"{self.title}  round {round_}/{total}  {self.text}"
            self.board.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def finished(self, result: RunResult) -> None:
        """The summary is on disk."""
        if self.task is not None:
            self.board.progress.update(self.task, completed=self.config.scenario.rounds)
