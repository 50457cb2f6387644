"""What robust rules have in common: every site counts the same, buffers are merged robustly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedshift import (
    Aggregator,
    Server,
    Tree,
    Uniform,
    Update,
    Weighting,
)
from fedshift.methods.shared.columns import columnwise, median


@dataclass(frozen=True)
class Robust(Aggregator):
    """Base of the rules: sites count the same, and buffers are merged robustly as well."""

    needs_individual_updates = True
    weights: Weighting | None = field(default_factory=Uniform)

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tree:
        """Parameters by rule and server optimiser; buffers by :meth:`buffers`."""
        weights = self.weights_of(server, updates)  # (n,)
        new = self.optimiser(server, self.combine(server, updates, weights))
        kept = self.buffers(server, updates)
        return {k: new.get(k, kept.get(k, v)) for k, v in server.shared.items()}

    def buffers(self, server: Server, updates: Sequence[Update]) -> Tree:
        """The sites' buffers, by default their coordinate-wise median."""
        return columnwise(updates, updates[0].shared.keys() - server.parameters, median)


def part_of(fraction: float, n: int) -> int:
    """ceil(fraction * n), not raised by a rounding error of the product."""
    return math.ceil(fraction * n - 1e-9)
