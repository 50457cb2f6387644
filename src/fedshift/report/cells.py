"""One number of a table: the mean over seeds, and how sure it is.

Tables, figures and pages print cells; ``report.results`` makes them from runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedshift.report import bootstrap
from fedshift.report.intervals import NORMAL, seed_interval


@dataclass(frozen=True)
class Cell:
    """Mean over seeds and sample standard deviation (NaN for a single seed).

    ``values`` are those of the seeds, in order; ``error`` is the standard error of a single seed's
    value that comes from the number of test samples, NaN where it is not known; ``draws`` are that
    value in each draw of the bootstrap over test samples, if predictions were kept.
    """

    mean: float
    std: float
    n: int
    values: tuple[float, ...] = ()
    error: float = math.nan
    draws: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        values: Iterable[float],
        error: float = math.nan,
        draws: NDArray[Any] | None = None,
    ) -> Cell:
        """Mean and deviation of ``values``; NaN values are left out."""
        values = tuple(values)
        known = [v for v in values if not math.isnan(v)]
        if not known:
            return cls(math.nan, math.nan, 0)
        return cls(
            statistics.fmean(known),
            statistics.stdev(known) if len(known) > 1 else math.nan,
            len(known),
            values,
            error,
            draws,
        )

    @property
    def interval(self) -> float:
        """Half-width of the 95 % interval: over seeds, or over test samples if there is one seed.

        With one seed it follows from the counts where these are all that matters (an accuracy),
        else from the bootstrap. NaN if it cannot be said.
        """
        if self.n > 1:
            return seed_interval([v for v in self.values if not math.isnan(v)])
        counted = NORMAL * self.error
        if self.n == 0 or self.draws is None or not math.isnan(counted):
            return counted
        return bootstrap.half_width(self.draws)

    def minus(self, other: Cell) -> Cell:
        """The difference to another cell of the same seeds, taken seed by seed.

        With one seed it is taken sample by sample if both have draws, which are of the same
        samples. If no draw tells the two apart, or without draws, the errors are added as if the
        samples were different ones: too wide rather than too narrow.
        """
        if len(self.values) != len(other.values):
            return Cell.of([self.mean - other.mean], math.nan)
        values = [a - b for a, b in zip(self.values, other.values, strict=True)]
        if self.draws is not None and other.draws is not None and len(values) == 1:
            paired = self.draws - other.draws
            if not math.isnan(bootstrap.half_width(paired)):
                return Cell.of(values, math.nan, paired)
        return Cell.of(values, math.hypot(self.error, other.error))

    def __str__(self) -> str:
        if self.n == 0:
            return "–"  # noqa: RUF001  the sign for no value
        return f"{self.mean:.1f}" if math.isnan(self.std) else f"{self.mean:.1f} ± {self.std:.1f}"

    @property
    def shown(self) -> str:
        """Mean and 95 % interval, as tables print them; the mean alone if there is no interval."""
        if self.n == 0 or math.isnan(self.interval):
            return str(self).partition(" ")[0]
        return f"{self.mean:.1f} ± {self.interval:.1f}"
