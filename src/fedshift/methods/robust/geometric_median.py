"""The geometric median of whole updates."""

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
from fedshift.methods.robust.rule import Robust
from fedshift.methods.shared.updates import moved_by, updates_gram

ITERATIONS = 1000  # of Weiszfeld, on n coefficients: microseconds each


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """argmin_v sum_k w_k |theta_k - v| (RFA: Pillutla et al., IEEE TSP 2022).

    Weiszfeld's iteration, smoothed at ``nu``: v <- sum_k b_k theta_k with b_k proportional to
    w_k / max(nu, |theta_k - v|). Every v is a combination of the updates, so distances follow from
    their inner products and an iteration costs n^2, whatever the size of the net. It stops once no
    b_k changes by more than 1e-9 of itself: the share of a far site is small, and still matters.
    """

    nu: float = setting(1e-6, "smallest distance that is divided by", low=1e-12)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The point with the smallest sum of distances."""
        return moved_by(server, updates, weiszfeld(updates_gram(server, updates), weights, self.nu))


def weiszfeld(gram: Tensor, weights: Tensor, nu: float) -> Tensor:
    """Coefficients b (n,) of the geometric median of vectors with these inner products (n, n)."""
    b, one = weights, torch.eye(len(gram), dtype=gram.dtype)
    for _ in range(ITERATIONS):
        apart = one - b  # row k: the coefficients of theta_k - v
        distances = ((apart @ gram) * apart).sum(dim=1).clamp(min=0).sqrt()  # (n,)
        new = weights / distances.clamp(min=nu)
        new = new / new.sum()
        if bool(((new - b).abs() <= 1e-9 * new).all()):
            break
        b = new
    return b


@register("geometric-median", paper="Pillutla et al., IEEE TSP 2022", group="aggregation")
def geometric_median() -> Method:
    """The point with the smallest sum of distances to the updates.

    Instead of each coordinate by itself the whole update is treated as one point, and the one
    nearest to all in sum is taken.

    Use it: fewer than half of the sites may be hostile, and whole updates are the outliers.
    Not for: attacks that hide in few coordinates of otherwise normal updates.
    Equations: Algorithm 2, smoothed Weiszfeld: `weiszfeld`.
    """
    return Method(aggregate=GeometricMedian())
