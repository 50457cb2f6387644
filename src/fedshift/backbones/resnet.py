"""Residual nets in the layout of torchvision, and F2DC's ResNet-10 (He et al., CVPR 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import Net, register_backbone
from fedshift.backbones.layers import (
    bottleneck_size,
    choice,
    freeze,
    he,
    image,
    normalisation,
    scaled,
    vector_normalisation,
)
from fedshift.backbones.pretrained import load_pretrained

Convs = tuple[tuple[int, int, int], ...]  # kernel, channels, stride of each conv of a block


def basic(channels: int, stride: int) -> Convs:
    """Two conv 3x3, the first with the stride."""
    return (3, channels, stride), (3, channels, 1)


def narrowing(channels: int, stride: int) -> Convs:
    """Conv 1x1, 3x3 with the stride, 1x1 to four times the channels."""
    return (1, channels, 1), (3, channels, stride), (1, 4 * channels, 1)


def _conv(inputs: int, conv: tuple[int, int, int], norm: str) -> nn.Conv2d:
    kernel, out, stride = conv
    bias = norm == "none"
    return nn.Conv2d(inputs, out, kernel, stride, padding=kernel // 2, bias=bias)


class Block(nn.Module):
    """ReLU(branch(x) + shortcut(x)); the shortcut is a 1x1 conv where the shape changes."""

    def __init__(self, inputs: int, convs: Convs, norm: str) -> None:
        super().__init__()
        self.pairs = [(f"conv{i}", f"bn{i}") for i in range(1, len(convs) + 1)]
        channels = inputs
        for (conv, bn), plan in zip(self.pairs, convs, strict=True):
            self.add_module(conv, _conv(channels, plan, norm))
            self.add_module(bn, normalisation(norm, plan[1]))
            channels = plan[1]
        stride = prod(plan[2] for plan in convs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != channels:
            shortcut = _conv(inputs, (1, channels, stride), norm)
            self.downsample = nn.Sequential(shortcut, normalisation(norm, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, C', H / stride, W / stride)."""
        y = x
        for i, (conv, bn) in enumerate(self.pairs):
            y = self.get_submodule(conv)(F.relu(y) if i else y)
            y = self.get_submodule(bn)(y)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


@dataclass(frozen=True)
class StagePlan:
    """Number of blocks in each stage, and the options of all ResNets."""

    name: str
    block: Callable[[int, int], Convs]
    depths: tuple[int, int, int, int]
    width: float
    norm: str
    stem: str
    bottleneck: int
    init: str = "he"  # as torchvision; default: PyTorch's own


def _stem(inputs: int, plan: StagePlan) -> dict[str, nn.Module]:
    """Conv 7x7 and max-pool, each halving the image, or one conv 3x3 that keeps its size."""
    small = plan.stem == "small"
    out = scaled(64, plan.width)
    return {
        "conv1": _conv(inputs, (3, out, 1) if small else (7, out, 2), plan.norm),
        "bn1": normalisation(plan.norm, out),
        "relu": nn.ReLU(),
        "maxpool": nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1),
    }


def _resnet(
    shape: Sequence[int],
    classes: int,
    plan: StagePlan,
    pretrained: str | None = None,
    train: str = "all",
) -> Net:
    small = choice("stem", plan.stem, ("imagenet", "small")) == "small"
    inputs, *_ = image(f"{plan.name} with stem={plan.stem}", shape, least=8 if small else 16)
    modules = _stem(inputs, plan)
    stages: dict[str, tuple[str, ...]] = {"stem": tuple(modules)}
    channels = scaled(64, plan.width)
    for i, depth in enumerate(plan.depths):
        blocks = []
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            convs = plan.block(scaled(64 * 2**i, plan.width), stride)
            blocks.append(Block(channels, convs, plan.norm))
            channels = convs[-1][1]
        modules[f"layer{i + 1}"] = nn.Sequential(*blocks)
        stages[f"layer{i + 1}"] = (f"layer{i + 1}",)
    modules |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    stages["pool"] = ("avgpool", "flatten")
    if features := bottleneck_size(plan.bottleneck):
        linear, norm = nn.Linear(channels, features), vector_normalisation(plan.norm, features)
        modules["bottleneck"] = nn.Sequential(linear, norm, nn.ReLU())
        stages["bottleneck"] = ("bottleneck",)
        channels = features
    modules["fc"] = nn.Linear(channels, classes)
    net = Net(modules, stages=stages, head="fc", shape=shape, classes=classes)
    if choice("init", plan.init, ("default", "he")) == "he":
        he(net)
    if pretrained is not None:
        load_pretrained(net, pretrained, fresh=("bottleneck",))
    return freeze(net, train, pretrained=pretrained, new=("bottleneck",))


@register_backbone("resnet10", paper="Wang et al., 2026")
def resnet10(  # noqa: PLR0913  one parameter per option
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    norm: str = "batch",
    stem: str = "small",
    bottleneck: int = 0,
    init: str = "default",
) -> Net:
    """F2DC's ResNet-10: stem of one conv 3x3 without max-pool, one basic block per stage.

    ``init`` is PyTorch's default, as in the code that F2DC and FPL released, or ``he``.
    """
    plan = StagePlan("resnet10", basic, (1, 1, 1, 1), width, norm, stem, bottleneck, init)
    return _resnet(shape, classes, plan)


@register_backbone("resnet18", paper="He et al., CVPR 2016")
def resnet18(  # noqa: PLR0913  one parameter per option
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    norm: str = "batch",
    stem: str = "imagenet",
    bottleneck: int = 0,
    pretrained: str | None = None,
    train: str = "all",
) -> Net:
    """ResNet-18 of torchvision; bottleneck=256 is CSAC's head, stem=small is for small images.

    CSAC puts Linear(512, 256), BatchNorm, ReLU between mean-pool and classifier; these layers
    start at random. ``pretrained`` is a local file of torchvision or timm, ``train`` what learns of
    it: ``all``, the ``head`` (and the bottleneck), or ``bn``, which adds every BatchNorm.
    """
    plan = StagePlan("resnet18", basic, (2, 2, 2, 2), width, norm, stem, bottleneck)
    return _resnet(shape, classes, plan, pretrained, train)


@register_backbone("resnet34", paper="He et al., CVPR 2016")
def resnet34(  # noqa: PLR0913  one parameter per option
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    norm: str = "batch",
    stem: str = "imagenet",
    bottleneck: int = 0,
    pretrained: str | None = None,
    train: str = "all",
) -> Net:
    """ResNet-34 of torchvision, with the options of resnet18."""
    plan = StagePlan("resnet34", basic, (3, 4, 6, 3), width, norm, stem, bottleneck)
    return _resnet(shape, classes, plan, pretrained, train)


@register_backbone("resnet50", paper="He et al., CVPR 2016")
def resnet50(  # noqa: PLR0913  one parameter per option
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    norm: str = "batch",
    stem: str = "imagenet",
    bottleneck: int = 0,
    pretrained: str | None = None,
    train: str = "all",
) -> Net:
    """ResNet-50 of torchvision (stride in the 3x3 conv), with the options of resnet18."""
    plan = StagePlan("resnet50", narrowing, (3, 4, 6, 3), width, norm, stem, bottleneck)
    return _resnet(shape, classes, plan, pretrained, train)
