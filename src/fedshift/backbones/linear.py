"""A linear model: logistic regression on vectors, or linear regression on numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from fedshift import Net, register_backbone


@register_backbone("linear")
def linear(shape: Sequence[int], classes: int) -> Net:
    """A linear head on the inputs as they are; of a table, what a statistician would fit first."""
    modules: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    inputs = prod(shape)
    modules["head"] = nn.Linear(inputs, classes)
    stages = {"inputs": ("flatten",)}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)
