"""The layers that CSAC compares, and their projections to one size (Eq. 5).

Shapes, here and in ``attention`` and ``discrepancy``: R layers on either side, B samples, C
channels and d positions after projection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import ConfigError, Tree

DEEPEST = 3  # ``auto`` takes at most this many layers, the last ones


def adopted(shapes: Mapping[str, Sequence[int]], wanted: str) -> list[str]:
    """The R stages to align, in the net's order; ``wanted``: ``auto``, or names joined by +."""
    maps = {name: shape for name, shape in shapes.items() if len(shape) == 3}
    if not maps:
        raise ConfigError(
            "cross-layer-calibration aligns maps (C, H, W), and no stage of this backbone has any; "
            "choose a convolutional backbone, or drop the part"
        )
    chosen = [*maps][-DEEPEST:] if wanted == "auto" else wanted.split("+")
    if odd := [name for name in chosen if name not in maps]:
        raise ConfigError(
            f"cross-layer-calibration.layers names {odd[0]!r}; this backbone has maps after "
            f"{', '.join(maps)}; join those to align with +"
        )
    chosen = [name for name in maps if name in chosen]
    size = maps[chosen[-1]][1:]
    if small := [n for n in chosen if maps[n][1] < size[0] or maps[n][2] < size[1]]:
        raise ConfigError(
            f"cross-layer-calibration.layers: {small[0]} has smaller maps than {chosen[-1]}, the "
            "last one, to whose size all are projected; leave it out"
        )
    return chosen


def window(size: int, target: int) -> tuple[int, int]:
    """Kernel and stride of a convolution without padding from ``size`` positions to ``target``.

    Examples:
        >>> [window(size, 7) for size in (28, 14, 7)]
        [(4, 4), (2, 2), (1, 1)]
    """
    stride = size // target
    return size - stride * (target - 1), stride


def new_projections(
    shapes: Sequence[Sequence[int]], channels: int, generator: torch.Generator
) -> Tree:
    """One convolution per layer (C, H, W) to ``channels`` maps of the last layer's size.

    Entries "layer/weight" and "layer/bias", drawn as torch draws a convolution.
    """
    out: Tree = {}
    for i, shape in enumerate(shapes):
        sides = zip(shape[1:], shapes[-1][1:], strict=True)
        kernel = [window(size, target)[0] for size, target in sides]
        bound = (shape[0] * kernel[0] * kernel[1]) ** -0.5
        for name, size in (("weight", (channels, shape[0], *kernel)), ("bias", (channels,))):
            out[f"{i}/{name}"] = torch.empty(size).uniform_(-bound, bound, generator=generator)
    return out


def project(maps: Sequence[Tensor], projections: Mapping[str, Tensor]) -> Tensor:
    """Proj of Eq. 5: layers (B, C_l, H_l, W_l) of one side to one size, (R, B, C, d)."""
    target = maps[-1].shape[2:]
    out = []
    for i, layer in enumerate(maps):
        sides = zip(layer.shape[2:], target, strict=True)
        strides = [window(size, wanted)[1] for size, wanted in sides]
        weight, bias = projections[f"{i}/weight"], projections[f"{i}/bias"]
        out.append(F.conv2d(layer, weight, bias, stride=strides).flatten(2))  # (B, C, d)
    return torch.stack(out)
