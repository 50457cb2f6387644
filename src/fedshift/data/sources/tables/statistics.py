"""What a site counts and sums over its training rows, so that preparation can be fitted.

``preparation`` fits on it. Statistics of several sites are added, field by field, and their sum is
that of the union of the rows: no row and no cell is needed anywhere else. The median of a sum is
read from counts in bins of growing width, which is off by at most 1 % of its value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fedshift.data.sources.tables.reading import Array

ERROR = 0.01  # of the median, relative
GAMMA = (1 + ERROR) / (1 - ERROR)  # ratio of the ends of a bin
SMALLEST, LAST = 1e-9, 2500  # below: zero; last bin: up to 5e12


@dataclass(frozen=True)
class NumberStatistics:
    """Of a column of numbers; ``bins`` counts values by sign and order of magnitude."""

    rows: int
    missing: int
    total: float
    squares: float
    whole: bool = False  # every value is a whole number
    bins: Mapping[int, int] = field(default_factory=dict)
    median: float | None = None  # exact, at one site; the sum of several has none

    def __add__(self, other: NumberStatistics) -> NumberStatistics:
        return NumberStatistics(
            self.rows + other.rows,
            self.missing + other.missing,
            self.total + other.total,
            self.squares + other.squares,
            self.whole and other.whole,
            _summed(self.bins, other.bins),
        )

    @property
    def size(self) -> int:
        """Numbers that leave a site when these statistics do."""
        return 5 + 2 * len(self.bins)

    def centre(self, how: str) -> float:
        """What a missing cell is filled with: the ``mean`` or the ``median``; 0 if all miss."""
        present = self.rows - self.missing
        if not present:
            return 0.0
        if how == "mean":
            return self.total / present
        return median_of(self.bins, whole=self.whole) if self.median is None else self.median

    def moments(self, fill: float) -> tuple[float, float]:
        """Mean and standard deviation once missing cells hold ``fill``; the latter is never 0."""
        if not self.rows:
            return 0.0, 1.0
        mean = (self.total + self.missing * fill) / self.rows
        spread = (self.squares + self.missing * fill**2) / self.rows - mean**2
        return mean, math.sqrt(spread) if spread > 1e-12 * max(mean**2, 1e-12) else 1.0

    def within(self, bounds: tuple[float, float]) -> tuple[float, float]:
        """Mean, and deviation once missing cells hold it, of sums that noise may have spoilt.

        Both are held to what values between ``bounds`` can have; where noise has left nothing,
        they are those of values spread evenly over the bounds.
        """
        middle, half = sum(bounds) / 2, (bounds[1] - bounds[0]) / 2
        present = self.rows - self.missing
        if present <= 0:
            return middle, half / math.sqrt(3)
        mean = self.total / present
        spread = self.squares / present - mean**2
        filled = min(present / max(self.rows, 1), 1.0)
        variance = min(spread, half**2) if spread > 1e-12 * max(mean**2, 1e-12) else half**2 / 3
        return min(max(mean, bounds[0]), bounds[1]), math.sqrt(variance * filled)


@dataclass(frozen=True)
class CategoryStatistics:
    """Of a column of categories."""

    rows: int
    missing: int
    counts: Mapping[str, int]

    def __add__(self, other: CategoryStatistics) -> CategoryStatistics:
        counts = _summed(self.counts, other.counts)
        return CategoryStatistics(self.rows + other.rows, self.missing + other.missing, counts)

    @property
    def size(self) -> int:
        """Numbers that leave a site when these statistics do."""
        return 2 + len(self.counts)

    def most_frequent(self) -> str:
        """The category of most rows; of equals the first by name."""
        return min(self.counts, key=lambda name: (-self.counts[name], name), default="")


Statistics = NumberStatistics | CategoryStatistics


Key = TypeVar("Key", int, str)


def _summed(a: Mapping[Key, int], b: Mapping[Key, int]) -> dict[Key, int]:
    return dict(a) | {key: a.get(key, 0) + count for key, count in b.items()}


def of_numbers(column: Array, *, bins: bool = True) -> NumberStatistics:
    """Statistics of numbers, (N,) with nan where one is missing."""
    present = column[~np.isnan(column)]
    return NumberStatistics(
        len(column),
        len(column) - len(present),
        float(present.sum()),
        float((present**2).sum()),
        bool((present == np.round(present)).all()),
        binned(present) if bins else {},
        float(np.median(present)) if len(present) else None,
    )


def of_categories(column: Array) -> CategoryStatistics:
    """Statistics of categories, (N,) texts with None where one is missing."""
    counts = Counter(value for value in column.tolist() if value is not None)
    return CategoryStatistics(len(column), len(column) - counts.total(), dict(counts))


def binned(values: Array) -> dict[int, int]:
    """How many values fall into each bin; bin k > 0 ends at SMALLEST * GAMMA**k, -k mirrors it."""
    size = np.maximum(np.abs(values), SMALLEST)
    bins = np.ceil(np.log(size / SMALLEST) / math.log(GAMMA) - 1e-9).astype(np.int64)
    bins = np.where(np.abs(values) < SMALLEST, 0, np.sign(values) * np.clip(bins, 1, LAST))
    found, counts = np.unique(bins.astype(np.int64), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def median_of(bins: Mapping[int, int], *, whole: bool = False) -> float:
    """The median of binned values: each stands for the middle of its bin."""
    order = sorted(bins)
    ends = np.cumsum([bins[k] for k in order])
    at = [int(np.searchsorted(ends, rank, side="right")) for rank in _middle(int(ends[-1]))]
    values = [_value(order[i]) for i in at]
    return sum(map(round, values) if whole else values) / 2


def _middle(count: int) -> tuple[int, int]:
    """Ranks of the two values whose mean is the median."""
    return (count - 1) // 2, count // 2


def _value(k: int) -> float:
    """The point of a bin whose relative distance to both ends is the same."""
    return math.copysign(2 * SMALLEST * GAMMA ** abs(k) / (1 + GAMMA), k) if k else 0.0
