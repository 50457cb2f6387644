"""The style of a feature map: mean and standard deviation of each channel over positions.

Methods exchange, mix or redraw these two numbers per channel (MixStyle, FedFA, CCST, PARDON,
StableFDG), for images as well as for maps inside a net. Inside a net it is done by a
:class:`BatchNeck`, whose part draws anew for each batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedshift import Neck

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
    """Changes the maps of the present training batch as its part has said for this batch.

    A part calls :meth:`prepare` from its hook ``batch``, with draws of the client's generator, and
    :meth:`rest` from ``finish``. Every training forward of that batch is then changed in the same
    way: a second pass, as sharpness-aware steps need, sees the same draws. In eval mode, and for
    inputs that are not the batch (told by their number), the maps pass unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rest()

    def prepare(self, rows: int, change: Callable[[Tensor], Tensor] | None) -> None:
        """Change the maps of the next batch, of ``rows`` samples; None leaves them as they are."""
        self.rows, self.change = rows, change

    def rest(self) -> None:
        """Change nothing until the next :meth:`prepare`."""
        self.prepare(0, None)

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Maps (B, C, H, W) to maps of the same shape."""
        if self.change is None or not self.training or len(maps) != self.rows:
            return maps, {}
        return self.change(maps), {}
