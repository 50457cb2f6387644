"""Rules that look at each coordinate by itself: median and trimmed mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Method,
    Server,
    Tree,
    Update,
    register,
    setting,
)
from fedshift.methods.robust.rule import Robust, part_of
from fedshift.methods.shared.columns import columnwise, median


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate (Yin et al., ICML 2018, Algorithm 1, option I).

    Stays within the range of the honest values while fewer than half of the sites attack.
    """

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """One median per coordinate."""
        return columnwise(updates, server.parameters, median)


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its k largest and k smallest values (option II).

    k = ceil(trim * n), at most what leaves one value: with trim 0.2, up to a fifth of the sites may
    attack. The ceiling, because a floor would trim nothing from small cohorts.
    """

    trim: float = setting(0.2, "fraction of sites cut at each end", low=0.0, high=0.5)

    def cut(self, block: Tensor) -> Tensor:
        """Trimmed mean of each column (width,)."""
        n = len(block)
        k = min(part_of(self.trim, n), (n - 1) // 2)
        return block.sort(dim=0).values[k : n - k].mean(dim=0, dtype=torch.float64)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """One trimmed mean per coordinate."""
        return columnwise(updates, server.parameters, self.cut)

    def buffers(self, server: Server, updates: Sequence[Update]) -> Tree:
        """As the parameters, but counters take their median."""
        rest = updates[0].shared.keys() - server.parameters
        floats = {k for k in rest if updates[0].shared[k].is_floating_point()}
        cut = columnwise(updates, floats, self.cut)
        return cut | columnwise(updates, rest - floats, median)


@register("median", paper="Yin et al., ICML 2018", group="aggregation")
def coordinate_median() -> Method:
    """The median of each coordinate, against a hostile minority.

    The server takes the middle value of each weight over the sites, so that fewer than half of them
    cannot carry it away.

    Use it: some sites may be broken or hostile and it is not known how many.
    Not for: honest sites of different domains: what few of them know is cut off with the outliers.
    Equations: Algorithm 1, option I: `median`, `Median.combine`.
    """
    return Method(aggregate=Median())


@register("trimmed-mean", paper="Yin et al., ICML 2018", group="aggregation")
def trimmed_mean() -> Method:
    """The mean of each coordinate without its extremes.

    For each weight the largest and the smallest values over the sites are dropped and the others
    averaged.

    Use it: the fraction of hostile sites is bounded and known.
    Not for: small cohorts of different domains: with five sites and trim=0.2 two of five values are
    dropped.
    Equations: Algorithm 1, option II: `TrimmedMean.cut`.
    """
    return Method(aggregate=TrimmedMean())
