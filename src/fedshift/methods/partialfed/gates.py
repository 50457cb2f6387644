"""Gates of 0 or 1 per layer, with a gradient (binary Gumbel-softmax)."""

from __future__ import annotations

import torch
from torch import Tensor

SUREST = 1e-6  # from 0 or 1: further away a logit is infinite


def gates(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """0 or 1 (L,): 1 with probability sigmoid(logit), for logistic noise (L,).

    The gradient is that of sigmoid((logit + noise) / temperature): binary Gumbel-softmax, straight
    through.
    """
    soft = ((logits + noise.to(logits)) / temperature).sigmoid()
    return (soft > 0.5).to(soft.dtype) + (soft - soft.detach())


def first_logits(chance: float, like: Tensor, n: int) -> Tensor:
    """Logits (n,) at which every gate is 1 with this chance, in the type and place of ``like``."""
    return like.new_tensor(chance).clamp(SUREST, 1 - SUREST).logit().repeat(n)


def logistic(n: int, generator: torch.Generator) -> Tensor:
    """The difference of two Gumbel variables, (n,)."""
    u = torch.rand(n, generator=generator, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    return u.logit().float()


def temperature(start: float, end: float, progress: float) -> float:
    """From ``start`` at progress 0 to ``end`` at 1, geometrically."""
    return start * (end / start) ** progress
