"""The equations of FedKA as pure functions (Sun, Chong and Ochiai, ACML 2022).

Two are shared with other methods: Eqs. 3 and 4 are ``shared.reversal.reverse``, Eqs. 5 and 6
``shared.mmd.mk_mmd``. Eq. 5 as printed sums its first two terms over pairs (i, i'); the norm above
them is mean K_SS + mean K_TT - 2 mean K_ST over all pairs, and that is computed. The paper gives
five kernels and a factor of two and leaves the middle bandwidth open; the released one is taken.
"""

from __future__ import annotations

from math import exp

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


def domain_loss(source: Tensor, target: Tensor) -> Tensor:
    """Eq. 2: J(0, f_d(h_S)) + J(1, f_d(h_T)), mean negative log likelihoods of logits (B, 2)."""
    return -(F.log_softmax(source, 1)[:, 0].mean() + F.log_softmax(target, 1)[:, 1].mean())


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
