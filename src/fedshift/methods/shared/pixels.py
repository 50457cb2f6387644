"""Inputs as pixels again: parts see images after they were normalised, some need them before."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift import ConfigError, ModelSpec
from fedshift.data.samples import SCALES, Pixels


def to_pixels(x: Tensor, pixels: Pixels) -> Tensor:
    """Pixels from 0 to 1 of normalised inputs (B, C, H, W)."""
    mean, std = _scale(x, pixels)
    return x * std + mean


def from_pixels(x: Tensor, pixels: Pixels) -> Tensor:
    """Inverse of :func:`to_pixels`."""
    mean, std = _scale(x, pixels)
    return (x - mean) / std


def clip_to_pixels(x: Tensor, pixels: Pixels) -> Tensor:
    """Inputs (B, C, H, W) clipped to what pixels from 0 to 1 become."""
    mean, std = _scale(x, pixels)
    return torch.minimum(torch.maximum(x, -mean / std), (1 - mean) / std)


def _scale(x: Tensor, pixels: Pixels) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device) for v in SCALES[pixels])
    return mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1)


def require_images(part: str, model: ModelSpec) -> None:
    """Raise if the inputs are not images (C, H, W)."""
    if len(model.net.shape) != 3:
        raise ConfigError(
            f"{part} changes images (C, H, W), and inputs here have shape {model.net.shape}; "
            "leave it out"
        )
