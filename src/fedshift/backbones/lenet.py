"""LeNet-5 and the CNN of federated averaging: two convs, then fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift import Net, register_backbone
from fedshift.backbones.layers import image, normalisation, scaled, vector_normalisation


def _conv(inputs: int, out: int, *, padding: int, norm: str) -> nn.Module:
    """Conv 5x5, norm, ReLU, max-pool."""
    conv = nn.Conv2d(inputs, out, 5, padding=padding)
    return nn.Sequential(conv, normalisation(norm, out), nn.ReLU(), nn.MaxPool2d(2))


def _dense(inputs: int, out: int, *, norm: str) -> nn.Module:
    """Flatten, linear, norm, ReLU."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, out), vector_normalisation(norm, out), nn.ReLU()
    )


def _net(modules: dict[str, nn.Module], shape: Sequence[int], classes: int) -> Net:
    stages = {name: (name,) for name in modules if name != "head"}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)


@register_backbone("lenet", paper="LeCun et al., Proc. IEEE 1998")
def lenet(shape: Sequence[int], classes: int, *, width: float = 1.0, norm: str = "none") -> Net:
    """LeNet-5: conv 5x5 (6, 16), fully connected 120, 84, with ReLU and max-pool.

    Sides below 32 are padded by 2 in the first conv, so 28 and 32 pixels both end at 16x5x5.
    ReLU and max-pool replace tanh and trained subsampling, as is usual today.
    """
    channels, *sides = image("lenet", shape, least=12)
    padding = 2 if min(sides) < 32 else 0
    height, breadth = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in sides)
    six, sixteen = scaled(6, width), scaled(16, width)
    wide, narrow = scaled(120, width), scaled(84, width)
    modules: dict[str, nn.Module] = {
        "conv1": _conv(channels, six, padding=padding, norm=norm),
        "conv2": _conv(six, sixteen, padding=0, norm=norm),
        "fc1": _dense(sixteen * height * breadth, wide, norm=norm),
        "fc2": _dense(wide, narrow, norm=norm),
        "head": nn.Linear(narrow, classes),
    }
    return _net(modules, shape, classes)


@register_backbone("mnist-cnn", paper="Yuan et al., TKDE 2023")
def mnist_cnn(shape: Sequence[int], classes: int, *, width: float = 1.0, norm: str = "none") -> Net:
    """Two conv 5x5 (32, 64) with ReLU and max-pool, fully connected 512, then a linear head.

    CSAC's text says two conv and two fully connected layers, and its released code lacks this net.
    This is the simplest net of that description: the MNIST CNN of McMahan et al., AISTATS 2017.
    """
    channels, height, breadth = image("mnist-cnn", shape, least=4)
    first, second, hidden = scaled(32, width), scaled(64, width), scaled(512, width)
    modules: dict[str, nn.Module] = {
        "conv1": _conv(channels, first, padding=2, norm=norm),
        "conv2": _conv(first, second, padding=2, norm=norm),
        "fc1": _dense(second * (height // 4) * (breadth // 4), hidden, norm=norm),
        "head": nn.Linear(hidden, classes),
    }
    return _net(modules, shape, classes)
