"""How well a model does at a site before and after a change, where the site has labels.

``adapt`` and ``finetune`` say it, and nothing is decided by it. Intervals are over the samples: the
binomial's for an accuracy, the bootstrap's for other measures and for the difference, which is
paired, since both models are scored on the same samples.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from fedshift.core.objective import Objective
from fedshift.report import bootstrap
from fedshift.report.cells import Cell
from fedshift.report.intervals import sample_error
from fedshift.runs.predictions import KeptPredictions


@dataclass(frozen=True)
class Scores:
    """The task's main measure in per cent; half-widths of 95 % intervals, None if not known."""

    measure: str
    samples: int
    before: float
    before_width: float | None
    after: float
    after_width: float | None
    change_width: float | None

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before

    def __str__(self) -> str:
        before, after = (
            f"{value:.1f}{_with(width)}"
            for value, width in ((self.before, self.before_width), (self.after, self.after_width))
        )
        change = f"{self.change:+.1f}{_with(self.change_width)}"
        return f"{self.measure} {before} -> {after} % ({change}) on {self.samples} labelled samples"

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return asdict(self) | {"change": self.change}


def compare(task: Objective, y: Tensor, before: Tensor, after: Tensor) -> Scores:
    """Scores of outputs (n, K) before and after, for targets (n,) or (n, K)."""
    cells = [_cell(task, y, out) for out in (before, after)]
    change = cells[1].minus(cells[0])
    widths = [_known(one.interval) for one in (*cells, change)]
    return Scores(task.main, len(y), cells[0].mean, widths[0], cells[1].mean, widths[1], widths[2])


def _cell(task: Objective, y: Tensor, out: Tensor) -> Cell:
    value = task.measured(out, y)[task.main]
    number = math.nan if value is None else value
    error = sample_error(number, len(y)) if task.name == "classification" else math.nan
    kept = KeptPredictions("site", 0, "site", y, out)
    return Cell.of([number], error, bootstrap.domain_draws([kept], task, areas=False)[task.main])


def _known(width: float) -> float | None:
    return None if math.isnan(width) else width


def _with(width: float | None) -> str:
    return "" if width is None else f" ± {width:.1f}"
