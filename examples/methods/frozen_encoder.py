"""A frozen encoder with a linear adapter: only the adapter and the head train and travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fedshift as fs


class Adapter(fs.Neck):
    """z + A z, the identity at first since A starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        z = torch.flatten(maps, 1)  # (B, D)
        return z + self.linear(z), {}


@dataclass(frozen=True)
class ExampleAdapter(fs.Part):
    """Every entry of the backbone below the head is fixed; an adapter follows its last stage."""

    def build(self, net: fs.Net) -> None:
        (width,) = net.shapes()["features"]
        net.insert(self.name, Adapter(width), after=list(net.stages)[-1])

    def scope(self, net: fs.Net) -> Mapping[str, fs.Scope]:
        added = {f"extra.{key}" for key in net.extra.state_dict()}
        encoder = net.state_dict().keys() - added - fs.head_keys(net)
        return dict.fromkeys(encoder, fs.Scope.FIXED)


@fs.register("example-frozen-encoder")
def frozen_encoder() -> fs.Method:
    """FedAvg of a linear adapter and a head on top of features that never change."""
    return fs.Method((ExampleAdapter(),))
