"""The result of a sweep: what each setting reached on validation data, and which one was chosen.

``experiment.sweep`` makes it. The setting is chosen on validation data alone, and the test number
of the chosen one is the only one that tables show: a reader who saw all of them would choose again.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Sequence
from csv import writer as csv_writer
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from fedshift.base import extras
from fedshift.base.errors import RunError
from fedshift.report.cells import Cell
from fedshift.report.formats import markdown_table, markdown_text, tabular, tex
from fedshift.report.results import RunResult, cell_of
from fedshift.report.tables import NONE, measure_note, rule_note
from fedshift.runs.summary import LAST, comparable

Row = dict[str, Any]


def validation_of(result: RunResult, protocol: str) -> float:
    """AVG on validation data at the round that a run reports; NaN if there is no such model."""
    rows = [row for row in result.history if protocol in row.get("scores", {})]
    outcome = result.outcome(protocol)
    if outcome is None or not rows:
        return math.nan
    values = {row["round"]: row["scores"][protocol]["val"]["avg"] for row in rows}
    if outcome.rule == "last5":
        return fmean(values[row["round"]] for row in comparable(rows)[-LAST:])
    return float(values[outcome.round])


@dataclass(frozen=True)
class Trial:
    """One setting: its runs, one per seed, and why some are missing."""

    values: tuple[tuple[str, str], ...]
    method: str  # its expression
    runs: tuple[RunResult, ...]
    failures: tuple[str, ...] = ()  # reasons of the runs that diverged
    pruned: int | None = None  # the round after which the search gave it up

    @property
    def label(self) -> str:
        """The values on one line."""
        return ", ".join(f"{key}={value}" for key, value in self.values) or "defaults"

    @property
    def complete(self) -> bool:
        """Whether it may be chosen: all its runs have been played to the end."""
        return bool(self.runs) and not self.failures and self.pruned is None

    def validation(self, protocol: str) -> Cell:
        """Validation AVG over seeds."""
        return Cell.of(validation_of(run, protocol) for run in self.runs)

    def remark(self) -> str:
        """Why it cannot be chosen; empty if it can."""
        if self.pruned is not None:
            return f"given up after round {self.pruned}"
        return f"{len(self.failures)} of its runs diverged" if self.failures else ""


@dataclass(frozen=True, repr=False)
class Sweep:
    """All trials of a sweep. ``best`` is the one with the highest mean on validation data."""

    method: str
    scenario: str
    protocol: str
    how: str  # grid, or what was drawn
    trials: list[Trial]
    path: Path | None = None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def best(self) -> Trial:
        """The chosen trial; the first one wins a tie."""
        fair = [t for t in self.trials if t.complete]
        known = [t for t in fair if not math.isnan(t.validation(self.protocol).mean)]
        if not known:
            why = "has validation samples" if fair else "was played to the end"
            raise RunError(f"no setting of this sweep {why}, so none can be chosen")
        return max(known, key=lambda t: t.validation(self.protocol).mean)

    @property
    def keys(self) -> list[str]:
        """The axes."""
        return list(dict.fromkeys(key for trial in self.trials for key, _ in trial.values))

    @property
    def headings(self) -> list[str]:
        """Titles of the columns of :attr:`lines`."""
        return [*self.keys, "validation", "test", ""]

    @property
    def lines(self) -> list[list[str]]:
        """Per trial its values, what it reached, and a remark; a test number for the best only."""
        return [self._line(trial) for trial in self.trials]

    def _line(self, trial: Trial) -> list[str]:
        chosen = trial is self.best
        values = dict(trial.values)
        test = self.test.shown if chosen else NONE
        told = [*(values.get(key, "default") for key in self.keys)]
        return [
            *told,
            trial.validation(self.protocol).shown,
            test,
            "chosen" if chosen else trial.remark(),
        ]

    @property
    def test(self) -> Cell:
        """The chosen setting's test AVG over seeds."""
        return cell_of(self.best.runs, self.protocol, "avg")

    @property
    def note(self) -> str:
        """What the numbers are, and how the setting was chosen."""
        run = self.best.runs[0]
        outcome = run.outcome(self.protocol)
        rule = rule_note([outcome.rule] if outcome else [])
        n = len(self.best.runs)
        over = f", ± 95 % interval over {n} seeds" if n > 1 else ", 1 seed"
        return (
            f"{measure_note(run)}, AVG over domains, protocol {self.protocol}{over}; {rule}; "
            "setting chosen by the highest mean on validation data among "
            f"{len(self.trials)} ({self.how}), test data looked at for the chosen one only"
        )

    @property
    def title(self) -> str:
        """Method and scenario."""
        return f"{self.method} in {self.scenario}"

    def __repr__(self) -> str:
        return f"<sweep of {self.title}: {len(self.trials)} settings, best {self.best.label}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return str(importlib.import_module("fedshift.report.notebook").sweep_table(self))

    def plot(self) -> Any:
        """Validation AVG over the axes with error bars over seeds, as a matplotlib figure."""
        extras.require("matplotlib", "figures need matplotlib", '"fedshift[report]"')
        return importlib.import_module("fedshift.report.sweep_figure").draw(self)

    def to_json(self) -> Row:
        """The table as JSON values."""
        return {
            "method": self.method,
            "scenario": self.scenario,
            "protocol": self.protocol,
            "how": self.how,
            "chosen": dict(self.best.values),
            "chosen_method": self.best.method,
            "test": _cell(self.test),
            "note": self.note,
            "trials": [
                {
                    "values": dict(trial.values),
                    "method": trial.method,
                    "validation": _cell(trial.validation(self.protocol)),
                    "runs": [run.config.name for run in trial.runs],
                    "remark": trial.remark(),
                }
                for trial in self.trials
            ],
        }


def _cell(cell: Cell) -> Row:
    interval = None if math.isnan(cell.interval) else cell.interval
    mean = None if cell.n == 0 else cell.mean
    return {"mean": mean, "interval": interval, "n": cell.n, "values": list(cell.values)}


def markdown(sweep: Sweep) -> str:
    """The table in Markdown."""
    lines = [[markdown_text(cell) for cell in line] for line in sweep.lines]
    heads = [markdown_text(head) for head in sweep.headings]
    table = markdown_table(heads, lines)
    return f"### {markdown_text(sweep.title)}\n\n{table}\n{markdown_text(sweep.note)}.\n"


def latex(sweep: Sweep) -> str:
    """The table in LaTeX, with booktabs."""
    body = [list(map(tex, line)) for line in sweep.lines]
    caption = rf"  \caption{{{tex(f'{sweep.title}. {sweep.note}.')}}}"
    lines = [r"\begin{table}\centering", caption, *tabular(sweep.headings, body)]
    return "\n".join([*lines, "\\end{table}\n"])


def csv(sweep: Sweep) -> str:
    """One line per setting and seed: the validation number, and test of the chosen setting."""
    out = io.StringIO()
    sheet = csv_writer(out, lineterminator="\n")
    sheet.writerow([*sweep.keys, "seed", "protocol", "validation", "test", "chosen", "run"])
    for trial in sweep.trials:
        chosen = trial is sweep.best
        values = [dict(trial.values).get(key, "") for key in sweep.keys]
        for run in trial.runs:
            test = run.accuracy(sweep.protocol) if chosen else ""
            told = [run.config.seed, sweep.protocol, validation_of(run, sweep.protocol), test]
            sheet.writerow([*values, *told, chosen, run.config.name])
    return out.getvalue()


def numbers(values: Sequence[str]) -> list[float] | None:
    """The values of an axis as numbers; None if one is none.

    >>> numbers(["0.1", "1"]), numbers(["0.1", "adam"])
    ([0.1, 1.0], None)
    """
    try:
        return [float(value) for value in values]
    except ValueError:
        return None
