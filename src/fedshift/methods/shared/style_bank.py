"""Styles of clients, of their images or of feature maps: measured at the site, kept by the server.

A style is a mean and a deviation per channel (2, C). CCST takes them from every other client,
StableFDG from one of them, PARDON from all together.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedshift import Client, Net
from fedshift.methods.shared.styles import channel_statistics


def image_styles(maps: Tensor) -> Tensor:
    """Styles (B, 2, C) of maps (B, C, H, W)."""
    return torch.stack([s.flatten(1) for s in channel_statistics(maps)], 1)


def overall_style(styles: Tensor) -> Tensor:
    """Mean and deviation (2, C) over all positions of all maps, from their styles (n, 2, C).

    The second moment is the mean of the maps' own, std^2 + mean^2.
    """
    mean, second = moments(styles)
    return torch.stack([mean, (second - mean.square()).clamp(min=0).sqrt()])


def moments(styles: Tensor) -> tuple[Tensor, Tensor]:
    """First and second moment (C,) over all positions, from styles (n, 2, C)."""
    mean, std = styles.unbind(1)  # (n, C) each
    return mean.mean(0), (std.square() + mean.square()).mean(0)


@torch.no_grad()
def client_styles(client: Client, stage: str | None) -> Tensor:
    """Styles (n, 2, C) of a client's training images, or of their maps after ``stage``.

    The net is as it is, in eval mode, and stays in it: to be called from ``enrol`` or ``probe``.
    """
    client.net.eval()
    return torch.cat([image_styles(maps) for maps in _maps(client, stage)])


def _maps(client: Client, stage: str | None) -> Iterator[Tensor]:
    for x, _ in client.site.data.train.chunks():
        yield x if stage is None else client.net(x).taps[stage]


def channels_of(net: Net, stage: str | None) -> int:
    """Channels of the images, or of the maps after ``stage``."""
    return net.shape[0] if stage is None else net.shapes()[stage][0]
