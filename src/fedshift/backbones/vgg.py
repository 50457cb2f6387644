"""VGG-11 with a mean-pool instead of its fully connected layers (FedDebias, ICML 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedshift import Net, register_backbone
from fedshift.backbones.layers import freeze, he, image, normalisation, scaled
from fedshift.backbones.pretrained import load_pretrained

BLOCKS = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # each ends with a max-pool
UNUSED = ("classifier", "pre_logits", "head")  # modules of torchvision and timm after the features


@register_backbone("vgg11", paper="Simonyan and Zisserman, ICLR 2015")
def vgg11(
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    norm: str = "none",
    pretrained: str | None = None,
    train: str = "all",
) -> Net:
    """VGG-11 of torchvision without its fully connected layers, then mean-pool; from 32 pixels.

    With ``norm=batch`` the keys are those of vgg11_bn. ``pretrained`` is a local file, and
    ``train`` is what learns of it: ``all``, the ``head``, or ``bn``.
    """
    channels, *_ = image("vgg11", shape, least=32)
    layers: list[nn.Module] = []
    stages: dict[str, tuple[str, ...]] = {}
    for i, block in enumerate(BLOCKS, start=1):
        start = len(layers)
        for base in block:
            out = scaled(base, width)
            # No Identity for an absent norm: it would shift the indices, which are the keys.
            between = [] if norm == "none" else [normalisation(norm, out)]
            layers += [nn.Conv2d(channels, out, 3, padding=1), *between, nn.ReLU()]
            channels = out
        layers.append(nn.MaxPool2d(2))
        stages[f"block{i}"] = tuple(f"features.{j}" for j in range(start, len(layers)))
    modules: dict[str, nn.Module] = {
        "features": nn.Sequential(*layers),
        "avgpool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(channels, classes),
    }
    stages["pool"] = ("avgpool", "flatten")
    net = Net(modules, stages=stages, head="fc", shape=shape, classes=classes)
    he(net)
    if pretrained is not None:
        load_pretrained(net, pretrained, unused=UNUSED)
    return freeze(net, train, pretrained=pretrained)
