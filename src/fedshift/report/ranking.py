"""Ranks of methods over blocks (domains, seeds), and which differences of ranks can be trusted.

Pages that compare many methods call :func:`rank`. The procedure is Demsar's (JMLR 2006): methods
are ranked in each block, Friedman's test asks whether they differ at all, and two methods are told
apart if their mean ranks differ by more than Nemenyi's critical difference. Blocks count as
independent there; two seeds of one domain are not quite, so a difference that is only just critical
deserves doubt. Nothing here may look at a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.base.errors import ConfigError


@dataclass(frozen=True)
class Ranking:
    """Mean ranks, best first; rank 1 is the best of a block, ties share the mean of their ranks."""

    ranks: dict[str, float]
    blocks: int
    p: float  # Friedman: the chance of ranks as uneven as these if all methods were alike
    critical: float  # Nemenyi: smallest difference of mean ranks that tells two apart

    def apart(self, a: str, b: str) -> bool:
        """Whether two methods are told apart at 5 %."""
        return abs(self.ranks[a] - self.ranks[b]) > self.critical

    def level_with(self, name: str) -> list[str]:
        """The other methods that cannot be told from this one, best first."""
        return [other for other in self.ranks if other != name and not self.apart(name, other)]


def rank(scores: Mapping[str, Sequence[float]], *, level: float = 0.05) -> Ranking:
    """Rank methods by scores of the same blocks in the same order; more is better.

    >>> found = rank({"a": [3, 3, 3], "b": [2, 2, 1], "c": [1, 1, 2]})
    >>> {name: round(mean, 2) for name, mean in found.ranks.items()}
    {'a': 1.0, 'b': 2.33, 'c': 2.67}
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range  # noqa: PLC0415  slow

    lengths = {len(values) for values in scores.values()}
    if len(scores) < 3 or len(lengths) != 1 or 0 in lengths:
        raise ConfigError(
            f"{len(scores)} methods with {sorted(lengths)} scores cannot be ranked; it takes three "
            "or more, with a score for every block"
        )
    table = np.array(list(scores.values()), dtype=np.float64)  # (methods, blocks)
    if not np.isfinite(table).all():
        raise ConfigError("a score is not finite; leave out methods that diverged and say so")
    means = rankdata(-table, axis=0).mean(axis=1)  # (methods,)
    k, blocks = table.shape
    p = float(friedmanchisquare(*table).pvalue) if np.ptp(table, axis=0).any() else 1.0
    q = float(studentized_range.ppf(1 - level, k, np.inf)) / math.sqrt(2)
    order = np.argsort(means, kind="stable")
    names = list(scores)
    return Ranking(
        ranks={names[i]: float(means[i]) for i in order},
        blocks=blocks,
        p=p if math.isfinite(p) else 1.0,
        critical=q * math.sqrt(k * (k + 1) / (6 * blocks)),
    )
