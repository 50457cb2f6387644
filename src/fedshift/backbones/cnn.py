"""A small convolutional net for small images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift import ConfigError, Net, register_backbone
from fedshift.backbones.layers import normalisation


@register_backbone("cnn")
def cnn(shape: Sequence[int], classes: int, width: int = 16, norm: str = "batch") -> Net:
    """Three blocks of conv 3x3, norm, ReLU, max-pool (width, 2x, 4x), then a linear head."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ConfigError(
            f"cnn takes images of at least 8x8, not inputs of shape {tuple(shape)}; "
            "use mlp or linear for vectors"
        )
    modules: dict[str, nn.Module] = {}
    channels = shape[0]
    for i, out in enumerate((width, 2 * width, 4 * width), start=1):
        modules[f"block{i}"] = nn.Sequential(
            nn.Conv2d(channels, out, 3, padding=1, bias=norm == "none"),
            normalisation(norm, out),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        channels = out
    modules["flatten"] = nn.Flatten()
    modules["head"] = nn.Linear(channels * (shape[1] // 8) * (shape[2] // 8), classes)
    stages = {name: (name,) for name in ("block1", "block2", "block3", "flatten")}
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)
