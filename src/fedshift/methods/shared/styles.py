"""The style of a feature map: mean and standard deviation of each channel over positions.

Methods exchange, mix or redraw these two numbers per channel (MixStyle, FedFA, CCST, PARDON,
StableFDG), for images as well as for maps inside a net. Inside a net it is done by a
:class:`BatchNeck`, whose part draws anew for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fedshift import Neck, Net

Change = Callable[[Tensor], Tensor]  # of maps (B, C, H, W)
EPSILON = 1e-6  # added to a variance before its root


def channel_statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (B, C, 1, 1) of maps (B, C, H, W) over positions.

    The variance is divided by HW and ``EPSILON`` is added to it, so that a constant channel can be
    divided by its deviation.
    """
    variance, mean = torch.var_mean(maps, (2, 3), correction=0, keepdim=True)
    return mean, (variance + EPSILON).sqrt()


def adain(maps: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Adaptive instance normalisation (Huang and Belongie, ICCV 2017): maps in another style.

    std (maps - mean(maps)) / std(maps) + mean, with maps (B, C, H, W) and the new ``mean`` and
    ``std`` (B, C, 1, 1), or anything that broadcasts to it.
    """
    own_mean, own_std = channel_statistics(maps)
    return (maps - own_mean) / own_std * std + mean


class BatchNeck(Neck):
    """Changes maps in training, in the same way in every forward pass of one batch.

    A part calls :meth:`prepare` from its hook ``batch`` with a function that draws a change for so
    many rows from the client's generator, and :meth:`rest` from ``finish``. The change is drawn in
    the first forward of the batch and kept for the others, so that a second pass, as
    sharpness-aware steps need it, sees the same one. In eval mode maps pass as they are.
    """

    def __init__(self, channels: int = 0) -> None:
        super().__init__()
        self.channels = channels
        self.rest()

    def prepare(self, draw: Callable[[int], Change | None]) -> None:
        """Draw anew for the next batch: ``draw`` takes a number of rows; None changes nothing."""
        self.draw: Callable[[int], Change | None] | None = draw
        self.drawn: dict[int, Change | None] = {}

    def rest(self) -> None:
        """Change nothing until the next :meth:`prepare`."""
        self.draw, self.drawn = None, {}

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Maps (B, C, H, W) to maps of the same shape."""
        if self.draw is None or not self.training:
            return maps, {}
        if len(maps) not in self.drawn:
            self.drawn[len(maps)] = self.draw(len(maps))
        change = self.drawn[len(maps)]
        return (maps if change is None else change(maps)), {}


def insert_necks(
    net: Net, part: str, stages: Iterable[str], kind: type[BatchNeck] = BatchNeck
) -> None:
    """One neck of the part after each of these stages, in place."""
    shapes = net.shapes()
    for stage in stages:
        net.insert(f"{part}-{stage}", kind(shapes[stage][0]), after=stage)


def necks_of(net: Net, part: str) -> dict[str, BatchNeck]:
    """The necks that :func:`insert_necks` has inserted, by stage, in the order of the net."""
    found = {stage: f"{part}-{stage}" for stage in net.stages}
    necks = {stage: net.extra[name] for stage, name in found.items() if name in net.extra}
    return {stage: neck for stage, neck in necks.items() if isinstance(neck, BatchNeck)}


def rest_necks(net: Net, part: str) -> None:
    """Let the part's necks change nothing, when a visit ends: the net is the next client's."""
    for neck in necks_of(net, part).values():
        neck.rest()
