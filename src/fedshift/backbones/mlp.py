"""A perceptron for vectors such as sentence embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from fedshift.net import Net
from fedshift.registry import register_backbone


@register_backbone("mlp")
def mlp(shape: Sequence[int], classes: int, hidden: int = 500, features: int = 100) -> Net:
    """Two hidden layers with BatchNorm and ReLU, then a linear head."""
    modules = {
        "layer1": nn.Sequential(nn.Linear(prod(shape), hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
        "layer2": nn.Sequential(nn.Linear(hidden, features), nn.BatchNorm1d(features), nn.ReLU()),
        "flatten": nn.Flatten(),
        "head": nn.Linear(features, classes),
    }
    stages = {"layer1": ("flatten", "layer1"), "layer2": ("layer2",)}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)
