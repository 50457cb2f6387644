"""How sure a number is: 95 % intervals over seeds, and over test samples where there is one seed.

``report.results`` and ``report.tables`` use it. Over n seeds the half-width is t * s / sqrt(n),
with Student's t of n - 1 degrees of freedom, and a difference of two methods is taken seed by seed,
so that what the seeds have in common cancels.

With one seed the test samples are all that varies. An accuracy is a proportion of n samples, and
drawing these again with replacement (the bootstrap) gives it the binomial's standard error; Agresti
and Coull's form of it is used, which is not zero at 0 or 100 %. Other measures, and differences of
two methods that were scored on the same samples, go through ``report.bootstrap`` if the runs kept
their predictions. Where they did not, two methods are treated as if their samples were different
ones, which makes the interval of the difference too wide rather than too narrow. An interval over
test samples says nothing about another seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.special import stdtrit

NORMAL = 1.959964  # quantile of the normal distribution for 95 %


def seed_interval(values: Sequence[float]) -> float:
    """Half-width of the 95 % interval of a mean over seeds; NaN for fewer than two values.

    >>> round(seed_interval([70.0, 72.0, 74.0]), 2)  # 4.303 * 2 / sqrt(3)
    4.97
    """
    n = len(values)
    if n < 2:
        return math.nan
    return float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)


def sample_error(percent: float, samples: int) -> float:
    """Standard error of an accuracy in per cent that was counted on ``samples`` test samples.

    >>> round(sample_error(50.0, 96), 6)  # p = (48 + 2) / 100
    5.0
    """
    p = (samples * percent / 100 + 2) / (samples + 4)
    return 100 * math.sqrt(p * (1 - p) / (samples + 4))


def mean_error(accuracies: Mapping[str, float], samples: Mapping[str, int]) -> float:
    """Standard error of the mean over domains, each counted on its own test samples."""
    if not accuracies or any(not samples.get(name) for name in accuracies):
        return math.nan
    errors = [sample_error(value, samples[name]) for name, value in accuracies.items()]
    return math.hypot(*errors) / len(errors)
