"""The generator G that all clients share, and the discriminator D of a client."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Tree,
)


def new_generator(d: int, classes: int) -> nn.Sequential:
    """Two layers from noise (B, D/2) beside labels (B, K) to features (B, D).

    They end in a ReLU as most features do.
    """
    first, last = nn.Linear(max(1, d // 2) + classes, d), nn.Linear(d, d)
    return nn.Sequential(first, nn.LeakyReLU(), last, nn.ReLU())


def new_discriminator(inputs: int, projected: int, generator: torch.Generator) -> Tree:
    """A fixed random projection of norm 1, and two layers as wide, drawn as torch draws them."""
    out: Tree = {"projection": torch.randn(projected, inputs, generator=generator)}
    out["projection"] /= out["projection"].norm()
    for layer, size in (("first", projected), ("last", 1)):
        for name, shape in (("weight", (size, projected)), ("bias", (size,))):
            drawn = torch.empty(shape).uniform_(generator=generator)
            out[f"{layer}/{name}"] = (2 * drawn - 1) * projected**-0.5
    return out


def judge(entries: Mapping[str, Tensor], z: Tensor, y: Tensor) -> Tensor:
    """D(z, y) in (0, 1), (B,), from features (B, D) and scaled labels (B, K)."""
    seen = torch.cat([z, y], 1) @ entries["projection"].T
    hidden = F.leaky_relu(F.linear(seen, entries["first/weight"], entries["first/bias"]))
    return F.linear(hidden, entries["last/weight"], entries["last/bias"]).flatten().sigmoid()


def discriminator_loss(generated: Tensor, own: Tensor) -> Tensor:
    """D's objective, mean of (1 - D(G))^2 + D(F(x))^2, from its answers (B,)."""
    return ((1 - generated).square() + own.square()).mean()
