"""Redrawn statistics of feature maps, and the neck that does it."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift.methods.shared.styles import (
    EPSILON,
    BatchNeck,
    adain,
    channel_statistics,
)

KINDS = ("mean", "std")


def fusion_coefficient(variance: Tensor) -> Tensor:
    """Eq. 9: gamma_j = C a_j / sum_j a_j with a = S / (1 + S), S (C,) the variance over clients.

    Channels that differ more between clients get more; the mean is 1. Without any variance it is 1.
    """
    a = variance / (1 + variance)
    total = a.sum()
    return a * (len(a) / total) if float(total) > 0 else torch.ones_like(a)


def redraw_statistics(maps: Tensor, gamma: Tensor, noise: Tensor) -> Tensor:
    """Eqs. 6 to 8: maps (B, C, H, W) with mean' = mean + e sqrt((1 + gamma) V), the same for std.

    V is the variance of the statistic over the batch, ``gamma`` (2, C) for mean and std, ``noise``
    e (2, B, C).
    """
    new = []
    for statistic, g, e in zip(channel_statistics(maps), gamma, noise, strict=True):
        spread = statistic.var(0, correction=0, keepdim=True) + EPSILON  # (1, C, 1, 1)
        scale = ((1 + g.to(maps).view(1, -1, 1, 1)) * spread).sqrt()
        new.append(statistic + e.to(maps)[..., None, None] * scale)
    return adain(maps, *new)


class FeatureNeck(BatchNeck):
    """Redraws the statistics of maps and returns those that they had, as ``mean`` and ``std``."""

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Maps (B, C, H, W) to maps of the same shape; batch means (C,) of both statistics."""
        if not self.training:
            return maps, {}
        before = (s.detach().mean((0, 2, 3)) for s in channel_statistics(maps))
        return super().forward(maps)[0], dict(zip(KINDS, before, strict=True))
