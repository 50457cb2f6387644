"""Maximum mean discrepancy with several Gaussian kernels (Gretton et al., JMLR and NIPS 2012)."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_distances(z: Tensor) -> Tensor:
    """|z_i - z_j|^2 (N, N) of rows (N, D), by one Gram matrix.

    Rows are centred first, which changes no distance and keeps float32 from cancelling.
    """
    z = z - z.mean(0).detach()
    square = z.square().sum(1)  # (N,)
    return (square[:, None] + square - 2 * z @ z.T).clamp_min(0)


def gaussian_kernels(squared: Tensor, widths: Tensor) -> Tensor:
    """exp(-squared / width), elementwise after broadcasting; widths are usually (kernels, 1, 1)."""
    return (-squared / widths).exp()


def bandwidths(distances: Tensor, kernels: int, factor: float) -> Tensor:
    """b_r = b_0 factor^(r - kernels // 2), r from 0; b_0 = mean distance of two rows, no gradient.

    ``distances`` (N, N) are squared ones.
    """
    n = len(distances)
    middle = (distances.detach().sum() / (n * n - n)).clamp_min(torch.finfo(distances.dtype).tiny)
    powers = torch.arange(kernels, dtype=distances.dtype) - kernels // 2
    return middle * factor**powers  # (kernels,)


def biased_mmd(kernel: Tensor, n: int) -> Tensor:
    """MMD^2 = mean K_SS + mean K_TT - 2 mean K_ST over all pairs; the first ``n`` rows are S.

    ``kernel`` (N, N) compares all rows with each other; zero if S and T are the same rows.
    """
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def mk_mmd(source: Tensor, target: Tensor, *, kernels: int = 5, factor: float = 2.0) -> Tensor:
    """Mean over Gaussian kernels exp(-|a - b|^2 / b_r) of MMD^2, of rows (n, D) and (m, D)."""
    distances = squared_distances(torch.cat([source, target]))  # (n + m, n + m)
    widths = bandwidths(distances, kernels, factor)
    kernel = gaussian_kernels(distances, widths[:, None, None]).mean(0)  # (n + m, n + m)
    return biased_mmd(kernel, len(source))
