"""Nets for vectors such as sentence embeddings or stored features of images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from fedshift import Net, register_backbone
from fedshift.backbones.layers import vector_normalisation


@register_backbone("mlp")
def mlp(
    shape: Sequence[int],
    classes: int,
    hidden: int = 500,
    features: int = 100,
    norm: str = "batch",
) -> Net:
    """Two hidden layers with norm and ReLU, then a linear head."""
    modules: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    inputs = prod(shape)
    for i, out in enumerate((hidden, features), start=1):
        linear = nn.Linear(inputs, out)
        modules[f"layer{i}"] = nn.Sequential(linear, vector_normalisation(norm, out), nn.ReLU())
        inputs = out
    modules["head"] = nn.Linear(inputs, classes)
    stages = {"layer1": ("flatten", "layer1"), "layer2": ("layer2",)}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)


@register_backbone("linear")
def linear(shape: Sequence[int], classes: int) -> Net:
    """A linear head on the inputs as they are: logistic regression, or a probe of features."""
    modules = {"flatten": nn.Flatten(), "head": nn.Linear(prod(shape), classes)}
    stages = {"flatten": ("flatten",)}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)
