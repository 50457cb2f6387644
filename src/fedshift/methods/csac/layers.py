"""CSAC's cross-layer alignment: projections, attention and MMD of layer pairs (Eqs. 5 to 9).

Shapes: R layers on either side, B samples, C channels and d positions after projection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import ConfigError, Tree
from fedshift.methods.shared.mmd import gaussian_kernels, squared_distances

BANDWIDTHS = tuple(3.0**k for k in range(-3, 2))  # multiples of the mean squared distance
FLOOR = 1e-12  # smallest scale of the kernels
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


def position_attention(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 7: softmax over m of avg(A_l^T B_m), (R, R), from a and b (R, B, C, d).

    The d x d map is never formed: its average is the inner product of the averages over positions.
    """
    energy = torch.einsum("lbc,mbc->lm", a.mean(3), b.mean(3)) / a.shape[1]
    return energy.softmax(1)


def channel_attention(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 8: softmax over m of avg(A_l B_m^T), (R, R); averages over channels instead."""
    energy = torch.einsum("lbd,mbd->lm", a.mean(2), b.mean(2)) / a.shape[1]
    return energy.softmax(1)


def both_attentions(a: Tensor, b: Tensor) -> Tensor:
    """Eq. 9: alpha = (alpha^p + alpha^c) / 2, (R, R)."""
    return 0.5 * (position_attention(a, b) + channel_attention(a, b))


def no_attention(a: Tensor, b: Tensor) -> Tensor:
    """Equal weights 1 / R, (R, R): Table 5, without attention."""
    return a.new_full((len(a), len(b)), 1 / len(b))


def same_layer(a: Tensor, b: Tensor) -> Tensor:
    """Identity (R, R): Table 5, same-layer alignment."""
    return torch.eye(len(a), len(b), dtype=a.dtype)


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


ATTENTIONS = {
    "both": both_attentions,
    "position": position_attention,
    "channel": channel_attention,
    "none": no_attention,
}
DISCREPANCIES = {"mmd": mmd, "mse": mse}
