"""The four-layer CNN of FedDebias for rotated digits (Guo et al., ICML 2023; from DomainBed)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift import Net, register_backbone
from fedshift.backbones.layers import image, normalisation, scaled


@register_backbone("feddebias-cnn", paper="Guo et al., ICML 2023")
def feddebias_cnn(
    shape: Sequence[int], classes: int, *, width: float = 1.0, norm: str = "group"
) -> Net:
    """FedDebias's four conv 3x3 (64, then 128), each conv, ReLU, GroupNorm(8), then mean-pool.

    The norm follows the ReLU, and ``group`` means 8 groups, as in their code.
    """
    channels, *_ = image("feddebias-cnn", shape, least=4)
    modules: dict[str, nn.Module] = {}
    for i, (base, stride) in enumerate(((64, 1), (128, 2), (128, 1), (128, 1)), start=1):
        out = scaled(base, width)
        modules[f"conv{i}"] = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1),
            nn.ReLU(),
            normalisation(norm, out, groups=8),
        )
        channels = out
    modules["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages = {name: (name,) for name in modules}
    modules["head"] = nn.Linear(channels, classes)
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)
