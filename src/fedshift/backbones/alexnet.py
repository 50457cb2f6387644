"""AlexNet in the layout of torchvision, and with BatchNorm as in FDSE (Wang et al., CVPR 2025)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift import Net, register_backbone
from fedshift.backbones.layers import (
    freeze,
    image,
    normalisation,
    probability,
    scaled,
    vector_normalisation,
)
from fedshift.backbones.pretrained import load_pretrained

# channels, kernel, stride, padding, whether a max-pool 3/2 follows
CONVS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)
LEAST = 63  # pixels: smaller images leave the last max-pool no window
SIDE = 6  # of the maps after adaptive pooling, for any size of image


@register_backbone("alexnet", paper="Krizhevsky, 2014")
def alexnet(
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    dropout: float = 0.5,
    pretrained: str | None = None,
    train: str = "all",
) -> Net:
    """AlexNet of torchvision: five convs, fully connected 4096, 4096 with dropout; from 63 pixels.

    The taps conv1, conv2 and conv5 are taken after their max-pool. ``pretrained`` is a local file,
    ``train`` what learns of it: ``all`` or the ``head``.
    """
    channels, *_ = image("alexnet", shape, least=LEAST)
    convs: list[nn.Module] = []
    stages: dict[str, tuple[str, ...]] = {}
    for i, (base, kernel, stride, padding, pooled) in enumerate(CONVS, start=1):
        out = scaled(base, width)
        step = [nn.Conv2d(channels, out, kernel, stride, padding), nn.ReLU()]
        step += [nn.MaxPool2d(3, 2)] if pooled else []
        stages[f"conv{i}"] = tuple(f"features.{len(convs) + j}" for j in range(len(step)))
        convs += step
        channels = out
    hidden = scaled(4096, width)
    rate = probability("dropout", dropout)
    modules: dict[str, nn.Module] = {
        "features": nn.Sequential(*convs),
        "avgpool": nn.AdaptiveAvgPool2d(SIDE),
        "flatten": nn.Flatten(),
        "classifier": nn.Sequential(
            *(nn.Dropout(rate), nn.Linear(channels * SIDE * SIDE, hidden), nn.ReLU()),
            *(nn.Dropout(rate), nn.Linear(hidden, hidden), nn.ReLU()),
            nn.Linear(hidden, classes),
        ),
    }
    stages["fc1"] = ("avgpool", "flatten", "classifier.0", "classifier.1", "classifier.2")
    stages["fc2"] = ("classifier.3", "classifier.4", "classifier.5")
    net = Net(modules, stages=stages, head="classifier.6", shape=shape, classes=classes)
    if pretrained is not None:
        load_pretrained(net, pretrained)
    return freeze(net, train, pretrained=pretrained)


@register_backbone("alexnet-bn", paper="Wang et al., CVPR 2025")
def alexnet_bn(
    shape: Sequence[int], classes: int, *, width: float = 1.0, norm: str = "batch"
) -> Net:
    """FDSE's AlexNet: norm after every conv and fully connected layer (1024, 1024); from 63 px."""
    channels, *_ = image("alexnet-bn", shape, least=LEAST)
    modules: dict[str, nn.Module] = {}
    for i, (base, kernel, stride, padding, pooled) in enumerate(CONVS, start=1):
        out = scaled(base, width)
        modules[f"conv{i}"] = nn.Sequential(
            nn.Conv2d(channels, out, kernel, stride, padding),
            normalisation(norm, out),
            nn.ReLU(),
            *([nn.MaxPool2d(3, 2)] if pooled else []),
        )
        channels = out
    modules["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(SIDE), nn.Flatten())
    features = channels * SIDE * SIDE
    for i in (1, 2):
        hidden = scaled(1024, width)
        linear = nn.Linear(features, hidden)
        modules[f"fc{i}"] = nn.Sequential(linear, vector_normalisation(norm, hidden), nn.ReLU())
        features = hidden
    stages = {name: (name,) for name in modules}
    modules["head"] = nn.Linear(features, classes)
    return Net(modules, stages=stages, head="head", shape=shape, classes=classes)
