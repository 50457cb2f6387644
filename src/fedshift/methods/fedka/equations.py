"""The equations of FedKA as pure functions (Sun, Chong and Ochiai, ACML 2022)."""

from __future__ import annotations

from math import exp
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def progress(batch: int, batches: int, *, round_: int, rounds: int) -> float:
    """Progress p = (b + r B) / (R B) of Section 3.2.4, at most 1; b and r count from 0.

    Examples:
        >>> progress(0, 32, round_=0, rounds=200), progress(16, 32, round_=1, rounds=2)
        (0.0, 0.75)
    """
    return min(1.0, (batch + round_ * batches) / (rounds * batches))


def coefficient(p: float, gamma: float) -> float:
    """lambda_p = 2 / (1 + exp(-gamma p)) - 1 of Section 3.2.4; gamma = 0 makes it exactly 0.

    Examples:
        >>> coefficient(0.7, 0.0), coefficient(0.0, 5.0), round(coefficient(1.0, 5.0), 3)
        (0.0, 0.0, 0.987)
    """
    return 2.0 / (1.0 + exp(-gamma * p)) - 1.0


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lam: float) -> Tensor:
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.lam * gradients[0], None


def reverse(x: Tensor, lam: float) -> Tensor:
    """Identity whose gradient is multiplied by -lam: Eq. 3 and Eq. 4 in one backward pass."""
    out: Tensor = _Reverse.apply(x, lam)
    return out


def domain_loss(source: Tensor, target: Tensor) -> Tensor:
    """Eq. 2: J(0, f_d(h_S)) + J(1, f_d(h_T)), mean negative log likelihoods of logits (B, 2)."""
    return -(F.log_softmax(source, 1)[:, 0].mean() + F.log_softmax(target, 1)[:, 1].mean())


def squared_distances(z: Tensor) -> Tensor:
    """|z_i - z_j|^2 (N, N) of rows (N, D); centred first, which only reduces rounding errors."""
    z = z - z.mean(0).detach()
    square = z.square().sum(1)  # (N,)
    return (square[:, None] + square - 2 * z @ z.T).clamp_min(0)


def bandwidths(distances: Tensor, kernels: int, factor: float) -> Tensor:
    """b_r = b_0 factor^(r - kernels // 2), r from 0; b_0 = mean distance of two rows, no gradient.

    The paper gives five kernels and a factor of two and leaves b_0 open; this is the released one.
    """
    n = len(distances)
    middle = (distances.detach().sum() / (n * n - n)).clamp_min(torch.finfo(distances.dtype).tiny)
    powers = torch.arange(kernels, dtype=distances.dtype) - kernels // 2
    return middle * factor**powers  # (kernels,)


def mk_mmd(source: Tensor, target: Tensor, *, kernels: int = 5, factor: float = 2.0) -> Tensor:
    """Eq. 6: mean over Gaussian kernels exp(-|a - b|^2 / b_r) of MMD^2 (Eq. 5), (n, D) and (m, D).

    Eq. 5 as printed sums its first two terms over pairs (i, i'); the norm above them is
    mean K_SS + mean K_TT - 2 mean K_ST over all pairs, and that is computed.
    """
    n = len(source)
    distances = squared_distances(torch.cat([source, target]))  # (n + m, n + m)
    widths = bandwidths(distances, kernels, factor)
    kernel = torch.exp(-distances / widths[:, None, None]).mean(0)  # (n + m, n + m)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def majority(ballots: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Eq. 10: the class with most votes, (N,), from ``ballots`` (clients, N); ties are random."""
    votes = F.one_hot(ballots, classes).sum(0)  # (N, K)
    lot = torch.rand(votes.shape, generator=generator, dtype=torch.float64)  # below one vote
    return (votes + lot).argmax(1)


def more_than_half(ballots: Tensor, classes: int) -> Tensor:
    """Which inputs (N,) have a class that more than half of the voters (clients, N) name."""
    votes = F.one_hot(ballots, classes).sum(0)  # (N, K)
    return 2 * votes.amax(1) > len(ballots)


def agreement(ballots: Tensor, classes: int) -> float:
    """Fleiss' kappa of the voters (clients, N): 1 if all agree, 0 if only by chance.

    With one voter, or if everybody names one class for every input, nothing can be told from
    agreement: 0.

    Examples:
        >>> agreement(torch.tensor([[0, 1, 2], [0, 1, 2]]), 3)
        1.0
        >>> agreement(torch.tensor([[1, 1, 1], [1, 1, 1]]), 3)
        0.0
    """
    n = len(ballots)
    votes = F.one_hot(ballots, classes).sum(0).double()  # (N, K)
    chance = votes.mean(0).div(n).square().sum()
    if n < 2 or chance >= 1:
        return 0.0
    pairs = (votes.square().sum(1) - n) / (n * (n - 1))  # (N,) share of voters that agree
    return float((pairs.mean() - chance) / (1 - chance))
