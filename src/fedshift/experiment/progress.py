"""Live progress of runs: rounds, clients, losses by name, accuracy, time left.

``run`` and ``compare`` show it by default: bars on a terminal, a table that updates itself in a
notebook, lines in the log ``fedshift`` elsewhere. The command line uses the same bars. Progress
goes to stderr or to a notebook's cell, never to stdout, which belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from types import TracebackType
from typing import Any, Self

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

from fedshift.base.times import duration
from fedshift.core.config import RunConfig
from fedshift.core.message import Lost, Update
from fedshift.engine.replies import describe_loss
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.listener import (
    Clock,
    Listener,
    LogListener,
    describe_estimate,
    describe_round,
)
from fedshift.report.results import RunResult
from fedshift.runs.record import Row

Watch = Callable[[RunConfig], Listener]  # a listener for each run
REFRESH = 0.2  # seconds between two updates of a notebook's cell


@contextmanager
def watching(*, quiet: bool) -> Iterator[Watch]:
    """Provide the listener factory that suits this process; nothing is shown if ``quiet``."""
    if quiet:
        yield lambda _config: Listener()
    elif in_notebook():
        yield NotebookTable().watch
    elif sys.stderr.isatty():
        with ProgressBoard() as board:
            yield board.watch
    else:
        yield lambda _config: LogListener()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class ProgressBoard:
    """Progress bars, one per run; about ten plain lines per run where there is no terminal."""

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

        self.runs: list[BoardLine] = []
        self.began = time.monotonic()

    def __enter__(self) -> Self:
        self.began = time.monotonic()
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
        """A listener that draws the bar of one run."""
        line = BoardLine(self, config)
        self.runs.append(line)
        return line

    def tell(self, text: str) -> None:
        """Print a line of its own, with or without a terminal."""
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def tell_all_left(self) -> None:
        """Of several runs: how many are done, and the time left by the rounds played so far."""
        done = sum(run.played for run in self.runs)
        left = sum(run.left for run in self.runs)
        if len(self.runs) > 1 and left and done:
            each = (time.monotonic() - self.began) / done
            ended = sum(run.left == 0 for run in self.runs)
            about = duration(each * left)
            self.tell(f"{ended} of {len(self.runs)} runs are done, about {about} left in all")


class BoardLine(Listener):
    """Draws one run as a bar of a :class:`ProgressBoard`."""

    def __init__(self, board: ProgressBoard, config: RunConfig) -> None:
        self.board, self.config = board, config
        self.title = title_of(config)
        self.task: TaskID | None = None
        self.clients = self.visited = 0
        self.played, self.left = 0, config.scenario.rounds  # rounds, in this process
        self.text = "waiting"
        self.clock = Clock()

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Add the bar, at the round where the run continues."""
        self.clients = config.scenario.cohort_size(clients)
        self.left = config.scenario.rounds - first_round + 1
        self.clock.start(first_round)
        self.task = self.board.progress.add_task(
            self.title, total=config.scenario.rounds, completed=first_round - 1, state="starting"
        )

    def replied(self, update: Update) -> None:
        """Count the clients that have trained in this round."""
        if update.task == "train" and self.task is not None:
            self.visited += 1
            state = f"{self.visited:>2}/{self.clients} clients  {self.text}"
            self.board.progress.update(self.task, state=state)

    def lost(self, lost: Lost) -> None:
        """Print the loss on a line of its own, with or without a terminal."""
        self.board.tell(describe_loss(lost))

    def expected(self, estimate: Estimate) -> None:
        """Print what the run takes in all."""
        self.board.tell(f"{self.title}: {describe_estimate(estimate)}")

    def round_done(self, row: Row) -> None:
        """Advance the bar and show the round's losses and accuracies."""
        self.visited, self.text = 0, describe_round(row)
        self.played, self.left = self.played + 1, self.left - 1
        if self.task is not None:
            self.board.progress.update(self.task, completed=row["round"], state=self.text)
        self._plainly(row["round"])

    def _plainly(self, round_: int) -> None:
        """About ten lines per run, for logs and pipes."""
        total = self.config.scenario.rounds
        due = round_ == total or round_ % max(1, total // 10) == 0
        if due and not self.board.console.is_terminal:
            left = self.clock.left(round_, total)
            self.board.tell(f"{self.title}  round {round_}/{total}  {self.text}  {left}".rstrip())

    def finished(self, result: RunResult) -> None:
        """Fill the bar, and say how long the other runs will take."""
        self.left = 0
        if self.task is not None:
            self.board.progress.update(self.task, completed=result.config.scenario.rounds)
        self.board.tell_all_left()


class NotebookTable:
    """One row per run in the output of a notebook's cell, updated in place.

    It needs IPython only; the bars of rich and tqdm would also need ipywidgets.
    """

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, int, int, str]] = {}  # by run: title, done, of, text
        self.shown = 0.0
        self.handle: Any = None

    def watch(self, config: RunConfig) -> Listener:
        """A listener that draws the row of one run."""
        return NotebookRow(self, config)

    def update(self, name: str, row: tuple[str, int, int, str], *, now: bool = False) -> None:
        """Set a run's row; redraws at most every ``REFRESH`` seconds, or at once if ``now``."""
        self.rows[name] = row
        if not now and time.monotonic() - self.shown < REFRESH:
            return
        self.shown = time.monotonic()
        from IPython.display import HTML, display  # noqa: PLC0415  a notebook has it

        if self.handle is None:
            self.handle = display(HTML(self.html()), display_id=True)
        else:
            self.handle.update(HTML(self.html()))

    def html(self) -> str:
        """The table with its current rows."""
        lines = [
            f"<tr><td>{escape(title)}</td><td><progress value='{done}' max='{of}'></progress></td>"
            f"<td>{done}/{of}</td><td>{escape(text)}</td></tr>"
            for title, done, of, text in self.rows.values()
        ]
        return f"<table>{''.join(lines)}</table>"


class NotebookRow(Listener):
    """Draws one run as a row of a :class:`NotebookTable`."""

    def __init__(self, table: NotebookTable, config: RunConfig) -> None:
        self.table, self.name = table, config.name
        self.title, self.rounds = title_of(config), config.scenario.rounds

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Show the row before the first round."""
        text = f"{clients} clients"
        self.table.update(config.name, (self.title, first_round - 1, self.rounds, text), now=True)

    def lost(self, lost: Lost) -> None:
        """Log the loss as a warning; the table has no place for it."""
        LogListener().lost(lost)

    def round_done(self, row: Row) -> None:
        """Advance the row; the last round is always drawn."""
        last = row["round"] == self.rounds
        entry = (self.title, row["round"], self.rounds, describe_round(row))
        self.table.update(self.name, entry, now=last)


def title_of(config: RunConfig) -> str:
    """Method, scenario and seed of a run, as its line is called."""
    return f"{config.label} · {config.scenario.name} · seed {config.seed}"
