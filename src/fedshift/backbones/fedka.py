"""The CNN of FedKA for digits, and its domain classifier (Sun et al., ACML 2022, released code)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift import Net, register_backbone
from fedshift.backbones.layers import (
    image,
    normalisation,
    probability,
    scaled,
    vector_normalisation,
)


def classifier(features: int, classes: int, *, hidden: int = 100, norm: str = "batch") -> nn.Module:
    """Linear, norm, ReLU, Linear; FedKA's log-softmax is left to the loss."""
    return nn.Sequential(
        nn.Linear(features, hidden),
        vector_normalisation(norm, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def domain_classifier(features: int, domains: int = 2) -> nn.Module:
    """FedKA's discriminator of source and target on the encoder's output.

    >>> sum(p.numel() for p in domain_classifier(800).parameters())
    80502
    """
    return classifier(features, domains)


@register_backbone("fedka-cnn", paper="Sun et al., ACML 2022")
def fedka_cnn(
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    norm: str = "batch",
    dropout: float = 0.0,
) -> Net:
    """FedKA's two conv 5x5 (64, 50), head of two layers; features are the encoder's 50x4x4.

    The features are what FedKA aligns, so the whole classifier is the head. ``dropout`` is the
    Dropout2d(.5) of the released code, which the paper does not mention, so it is off by default.
    """
    channels, *sides = image("fedka-cnn", shape, least=16)
    first, second = scaled(64, width), scaled(50, width)
    height, breadth = (((side - 4) // 2 - 4) // 2 for side in sides)
    modules = {
        "conv1": nn.Sequential(
            nn.Conv2d(channels, first, 5), normalisation(norm, first), nn.MaxPool2d(2), nn.ReLU()
        ),
        "conv2": nn.Sequential(
            nn.Conv2d(first, second, 5),
            normalisation(norm, second),
            nn.Dropout2d(probability("dropout", dropout)),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ),
        "head": classifier(
            second * height * breadth, classes, hidden=scaled(100, width), norm=norm
        ),
    }
    stages = {"conv1": ("conv1",), "conv2": ("conv2",)}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)
