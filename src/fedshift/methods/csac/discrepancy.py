"""How far projected layers are apart (MMD), and the weighted sum over pairs (Eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift.methods.shared.mmd import gaussian_kernels, squared_distances

BANDWIDTHS = tuple(3.0**k for k in range(-3, 2))  # multiples of the mean squared distance
FLOOR = 1e-12  # smallest scale of the kernels


def pair_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of all samples of all layers, (2R, 2R, B, B), by one Gram matrix.

    ``a`` and ``b`` are (R, B, P).
    """
    squared = squared_distances(torch.cat([a, b]).flatten(0, 1))  # (2R B, 2R B)
    return squared.unflatten(0, (-1, a.shape[1])).unflatten(2, (-1, a.shape[1])).transpose(1, 2)


def kernel(squared: Tensor, scale: Tensor) -> Tensor:
    """sum_k exp(-squared / (2 * 3^k * scale)) for k = -3..1, elementwise after broadcasting."""
    widths = torch.tensor(BANDWIDTHS, dtype=squared.dtype).view(-1, *[1] * squared.dim())
    return gaussian_kernels(squared, 2 * widths * scale).sum(0)


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """Unbiased MMD^2 of every pair of layers, (R, R), from features (R, B, P) of both sides.

    Gretton et al., JMLR 2012, Eq. 3: mean of k(x, x') and of k(y, y') over different samples, less
    twice the mean of k(x, y). The kernel's scale is the mean squared distance of the 2B samples of
    the pair, without gradient.
    """
    layers, n = a.shape[:2]
    squared = pair_distances(a, b)  # (2R, 2R, B, B)
    within = squared.diagonal().permute(2, 0, 1)  # (2R, B, B)
    x, y = within[:layers, None], within[None, layers:]  # (R, 1, B, B) and (1, R, B, B)
    xy = squared[:layers, layers:]  # (R, R, B, B)
    scale = (x + y + 2 * xy).detach().mean((2, 3), keepdim=True) / 4  # (R, R, 1, 1)
    scale = scale.clamp_min(FLOOR)  # constant features: MMD and its gradient are zero
    others = (1 - torch.eye(n, dtype=a.dtype)) / (n * (n - 1))  # (B, B), without the same sample
    alike = ((kernel(x, scale) + kernel(y, scale)) * others).sum((2, 3))
    return alike - 2 * kernel(xy, scale).mean((2, 3))


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared difference of every pair of layers, (R, R): Table 5."""
    return (a[:, None] - b[None]).square().mean((2, 3))


def alignment(alpha: Tensor, discrepancy: Tensor) -> Tensor:
    """L_AL = sum_l sum_m alpha_lm D(M_l', L_m'), Eq. 6; alpha (R, R) carries no gradient."""
    return (alpha.detach() * discrepancy).sum()


DISCREPANCIES = {"mmd": mmd, "mse": mse}
