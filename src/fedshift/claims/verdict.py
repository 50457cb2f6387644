"""The verdict on a claim: paired differences over seeds, their interval, and what could be shown.

A claim says that a method is better than its control by some amount, or as good as it. Both are
run with the same seeds, and the difference is taken seed by seed, so that what the seeds have in
common (split, initialisation) cancels. Nothing here may look at a run, a method or a paper.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

Verdict = Literal["holds", "does not hold", "undecided"]
LEVEL, POWER = 0.95, 0.8


@dataclass(frozen=True)
class Difference:
    """Paired differences over seeds, method minus control, as mean and 95 % interval.

    An ``exact`` number does not depend on the seed: its interval is a point.
    """

    values: tuple[float, ...]
    exact: bool = False

    @property
    def n(self) -> int:
        """Number of seeds that both have."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference; NaN without a seed."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def half(self) -> float:
        """Half-width of the 95 % interval by Student's t; infinite for fewer than two seeds."""
        return self._standard_error * _quantile(self.n, (1 + LEVEL) / 2)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half

    @property
    def detectable(self) -> float:
        """The smallest true difference that so many seeds would show in four of five cases.

        With the scatter that was seen: s / sqrt(n) (t_0.975 + t_0.8), n - 1 degrees of freedom.
        """
        return self._standard_error * (
            _quantile(self.n, (1 + LEVEL) / 2) + _quantile(self.n, POWER)
        )

    @property
    def _standard_error(self) -> float:
        if self.exact and self.n:
            return 0.0
        if self.n < 2:
            return math.inf
        return statistics.stdev(self.values) / math.sqrt(self.n)


def _quantile(n: int, p: float) -> float:
    return float(stdtrit(n - 1, p)) if n > 1 else 1.0


def better(found: Difference, least: float = 0.0) -> Verdict:
    """Whether the difference is above ``least``: all of its interval above, all below, or neither.

    >>> better(Difference((2.0, 3.0, 4.0, 3.0, 3.0)))
    'holds'
    >>> better(Difference((2.0, -3.0, 1.0)))
    'undecided'
    """
    if found.low > least:
        return "holds"
    return "does not hold" if found.high < least else "undecided"


def close(found: Difference, within: float) -> Verdict:
    """Whether both are as good as each other: all of the interval inside ±``within``, or outside.

    >>> close(Difference((0.1, -0.2, 0.1, 0.0)), within=1.0)
    'holds'
    """
    if -within < found.low and found.high < within:
        return "holds"
    return "does not hold" if found.low > within or found.high < -within else "undecided"
