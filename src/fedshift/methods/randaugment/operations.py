"""The fourteen operations on images, each with a level from -1 to 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift.data.augment import blend, luminance, resample

Operation = Callable[[Tensor, Tensor], Tensor]  # images (B, C, H, W) and level (B,) in [-1, 1]


def auto_contrast(x: Tensor, _: Tensor) -> Tensor:
    """Each channel stretched to the whole range from 0 to 1; a constant one stays as it is."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-12), x)


def equalise(x: Tensor, _: Tensor) -> Tensor:
    """Each channel's values by their rank: the share of pixels below, so a flat histogram.

    Of equal pixels all get the same share; the smallest value becomes 0 and the largest 1.
    """
    rows = (x * 255).round().flatten(0, 1).flatten(1)  # (B C, H W)
    ordered = rows.sort(1).values.contiguous()
    below = torch.searchsorted(ordered, rows.contiguous()).to(x.dtype)  # how many are smaller
    most = below.amax(1, keepdim=True)
    spread = torch.where(most > 0, below / most.clamp(min=1), rows / 255)
    return spread.view_as(x)


def solarise(x: Tensor, level: Tensor) -> Tensor:
    """Pixels above 1 - |level| are inverted."""
    return torch.where(x > 1 - _column(level.abs()), 1 - x, x)


def posterise(x: Tensor, level: Tensor) -> Tensor:
    """Fewer values per channel: 8 - 4 |level| bits."""
    step = _column(2.0 ** (4 * level.abs()).round())
    return (x * 255 / step + 1e-4).floor() * step / 255


def sharpness(x: Tensor, level: Tensor) -> Tensor:
    """Away from (level > 0) or towards a 3x3 blur; the border stays as it is."""
    kernel = torch.ones(3, 3)
    kernel[1, 1] = 5
    weight = (kernel / 13).to(x).expand(x.shape[1], 1, 3, 3)
    smooth = x.clone()
    smooth[..., 1:-1, 1:-1] = F.conv2d(x, weight, groups=x.shape[1])
    return blend(x, smooth, _column(1 + 0.9 * level))


def brightness(x: Tensor, level: Tensor) -> Tensor:
    """Pixels times 1 + 0.9 level."""
    return blend(x, torch.zeros_like(x), _column(1 + 0.9 * level))


def colour(x: Tensor, level: Tensor) -> Tensor:
    """Away from or towards grey; nothing for images of other than three channels."""
    return blend(x, luminance(x), _column(1 + 0.9 * level)) if x.shape[1] == 3 else x


def contrast(x: Tensor, level: Tensor) -> Tensor:
    """Away from or towards the image's mean grey."""
    grey = luminance(x) if x.shape[1] in (1, 3) else x
    return blend(x, grey.mean((1, 2, 3), keepdim=True), _column(1 + 0.9 * level))


def affine(kind: str) -> Operation:
    """Rotation up to 30 degrees, shear up to 0.3, translation up to 0.45 of a side; black edges."""

    def apply(x: Tensor, level: Tensor) -> Tensor:
        theta = torch.eye(2, 3).repeat(len(x), 1, 1)  # (B, 2, 3)
        tall = x.shape[2] / x.shape[3]
        if kind == "rotate":
            cos, sin = (f(level * math.pi / 6) for f in (torch.cos, torch.sin))
            theta[:, 0, 0], theta[:, 1, 1] = cos, cos
            theta[:, 0, 1], theta[:, 1, 0] = -sin * tall, sin / tall
        elif kind.startswith("shear"):
            row, scale = (0, tall) if kind == "shear-x" else (1, 1 / tall)
            theta[:, row, 1 - row] = 0.3 * level * scale
        else:
            theta[:, 0 if kind == "translate-x" else 1, 2] = 0.9 * level  # a side is 2 long
        return resample(x, theta.to(x), "zeros")

    return apply


def _column(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


OPERATIONS: dict[str, Operation] = {
    "identity": lambda x, _: x,
    "auto-contrast": auto_contrast,
    "equalise": equalise,
    "solarise": solarise,
    "posterise": posterise,
    "sharpness": sharpness,
    "brightness": brightness,
    "colour": colour,
    "contrast": contrast,
    **{k: affine(k) for k in ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")},
}


def augmented(x: Tensor, chosen: Tensor, level: Tensor) -> Tensor:
    """Pixels (B, C, H, W) after one operation each: ``chosen`` (B,) of OPERATIONS, level (B,)."""
    out = x.clone()
    for i, operation in enumerate(OPERATIONS.values()):
        rows = (chosen == i).nonzero().flatten()
        if len(rows):
            out[rows] = operation(x[rows], level[rows].to(x))
    return out
