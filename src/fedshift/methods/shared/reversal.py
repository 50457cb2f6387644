"""Gradient reversal: one backward pass for two opponents (Ganin and Lempitsky, ICML 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lam: float) -> Tensor:
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.lam * gradients[0], None


def reverse(x: Tensor, lam: float) -> Tensor:
    """Identity whose gradient is multiplied by -lam.

    What lies behind it descends its loss, what lies before it climbs the same loss with weight lam.
    """
    out: Tensor = _Reverse.apply(x, lam)
    return out
