"""Trimmed mean: drop the extremes of every coordinate (Yin et al., ICML 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import fedshift as fs


@dataclass(frozen=True)
class ExampleTrimmedMean(fs.Aggregator):
    """Of n values per coordinate, the mean of all but the b smallest and the b largest.

    b = floor(fraction n). Every client that is left counts the same; BatchNorm statistics go
    through the rule as well, or one wrong reply would spoil them.
    """

    fraction: float = fs.setting(0.25, "of the clients, dropped at each end", low=0.0, high=0.49)
    needs_individual_updates = True

    def covers(self, server: fs.Server) -> frozenset[str]:
        return frozenset(k for k, v in server.shared.items() if v.is_floating_point())

    def combine(self, server: fs.Server, updates: Sequence[fs.Update], weights: Tensor) -> fs.Tree:
        n, b = len(updates), int(self.fraction * len(updates))
        keys = [k for k in updates[0].shared if k in self.covers(server)]
        stacks = {k: torch.stack([u.shared[k] for u in updates]) for k in keys}  # (n, ...)
        return {k: v.sort(0).values[b : n - b].mean(0) for k, v in stacks.items()}


@fs.register("example-trimmed-mean", paper="Yin et al., ICML 2018")
def trimmed_mean() -> fs.Method:
    """FedAvg with a rule that a few wrong replies cannot move far."""
    return fs.Method((), ExampleTrimmedMean())
