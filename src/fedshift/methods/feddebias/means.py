"""Means of random inputs, and their mixtures with local samples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift import (
    Samples,
)


def random_sample_means(x: Tensor, per_sample: int) -> Tensor:
    """Algorithm 2, line 5: means of M consecutive rows of ``x`` (n * M, *shape), (n, *shape)."""
    return x.unflatten(0, (-1, per_sample)).mean(1)


def mixture(x_p: Tensor, x_k: Tensor, y_k: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 4: (x_p + sum_k x_k) / (K + 1) and (1/C + sum_k y_k) / (K + 1).

    ``x_p`` is (B, *shape), ``x_k`` (B, K, *shape) local samples, ``y_k`` (B, K, C) their one-hot
    labels; returns (B, *shape) and (B, C).
    """
    shares = 1 + x_k.shape[1]
    return (x_p + x_k.sum(1)) / shares, (1 / y_k.shape[2] + y_k.sum(1)) / shares


def draw(samples: Samples, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``n`` inputs and labels, drawn with replacement."""
    return samples.take(torch.randint(len(samples), (n,), generator=generator))


def means_of(samples: Samples, n: int, per_sample: int, generator: torch.Generator) -> Tensor:
    """Algorithms 2 and 3: ``n`` means of ``per_sample`` random inputs each, (n, *shape)."""
    return random_sample_means(draw(samples, n * per_sample, generator)[0], per_sample)


def choose(means: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """A random choice of ``size`` means (n, *shape); each is used once before any is repeated."""
    rounds = -(-size // len(means))
    order = [torch.randperm(len(means), generator=generator) for _ in range(rounds)]
    return means[torch.cat(order)[:size]]
