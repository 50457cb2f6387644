"""The virtual labelled set: noise of each class through an untrained decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

NOISE = 64  # dimensions of the decoder's input
MEANS, SPREAD = 0.3, 0.1  # std of the class means, and of a sample around its mean
CHANNELS, SIDE = 32, 4  # of the decoder's first map


def virtual_noise(classes: int, samples: int) -> tuple[Tensor, Tensor]:
    """Noise (V, 64) and classes (V,): mu_c ~ N(0, 0.3^2), z ~ N(mu_c, 0.1^2), classes in turn.

    Draws from torch's global generator: seed it before.
    """
    means = MEANS * torch.randn(classes, NOISE)
    y = torch.arange(samples) % classes
    return means[y] + SPREAD * torch.randn(samples, NOISE), y


def random_decoder(shape: Sequence[int]) -> nn.Module:
    """An untrained decoder from noise (B, 64) to inputs (B, *shape), as torch initialises it.

    Images: a linear layer to 32 maps of 4x4, then as often as needed doubling, conv 3x3 and leaky
    ReLU, a last conv to the channels of the image, cut to its size. Vectors: two linear layers.
    """
    if len(shape) != 3:
        wide = nn.Sequential(nn.Linear(NOISE, 2 * NOISE), nn.LeakyReLU(0.2))
        return nn.Sequential(
            wide, nn.Linear(2 * NOISE, math.prod(shape)), nn.Unflatten(1, (*shape,))
        )
    doublings = max(0, math.ceil(math.log2(max(shape[1:]) / SIDE)))
    layers: list[nn.Module] = [
        nn.Linear(NOISE, CHANNELS * SIDE * SIDE),
        nn.Unflatten(1, (CHANNELS, SIDE, SIDE)),
    ]
    for _ in range(doublings):
        layers += [
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            nn.LeakyReLU(0.2),
        ]
    return nn.Sequential(*layers, nn.Conv2d(CHANNELS, shape[0], 3, padding=1))


@torch.no_grad()
def decode(decoder: nn.Module, noise: Tensor, shape: Sequence[int]) -> Tensor:
    """Virtual inputs (B, *shape), each with mean 0 and standard deviation 1."""
    x: Tensor = decoder(noise)
    if len(shape) == 3:
        x = x[:, :, : shape[1], : shape[2]]
    flat = x.flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    return (flat / flat.std(1, correction=0, keepdim=True).clamp(min=1e-12)).view_as(x)
