"""Shared by the backbones: checks of input and options, widths, normalisation, initialisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fedshift import ConfigError, Net, batch_norm_keys, head_keys

WIDEST = 8  # a larger multiplier is probably a number of channels given by mistake


def image(backbone: str, shape: Sequence[int], *, least: int) -> tuple[int, int, int]:
    """Channels, height and width of one input; an error if it is not an image or too small."""
    if len(shape) != 3:
        raise ConfigError(
            f"{backbone} takes images (channels, height, width), not inputs of shape "
            f"{tuple(shape)}; use mlp"
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise ConfigError(
            f"{backbone} takes images of at least {least}x{least}, not inputs of shape "
            f"{tuple(shape)}; use larger images or another backbone such as cnn"
        )
    return channels, height, width


def scaled(channels: int, width: Any) -> int:
    """Channels times the width multiplier, at least one.

    >>> scaled(64, 0.5), scaled(6, 0.1)
    (32, 1)
    """
    if not isinstance(width, int | float) or not 0 < width <= WIDEST:
        raise ConfigError(
            f"width is {width!r}; it multiplies the channels of the paper, "
            f"so it must be a number above 0 and at most {WIDEST}"
        )
    return max(1, round(channels * width))


def probability(name: str, value: Any) -> float:
    """The value of a dropout option: 0 switches it off."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a number from 0 to below 1")
    return float(value)


def choice(name: str, value: str, known: Sequence[str]) -> str:
    """The value of an option, checked to be one of ``known``."""
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; it takes {', '.join(known[:-1])} or {known[-1]}")
    return value


def bottleneck_size(value: Any) -> int:
    """The value of an option that adds a layer of so many features before the head."""
    if not isinstance(value, int) or value < 0:
        raise ConfigError(
            f"bottleneck is {value!r}; it takes its number of features, or 0 for none"
        )
    return value


def normalisation(kind: str, channels: int, *, groups: int = 0) -> nn.Module:
    """A layer that normalises maps; by default a group has at least 8 channels.

    >>> normalisation("group", 50).num_groups
    5
    """
    if choice("norm", kind, ("batch", "group", "none")) == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "none":
        return nn.Identity()
    most = groups or max(1, channels // 8)
    return nn.GroupNorm(max(n for n in range(1, most + 1) if channels % n == 0), channels)


def vector_normalisation(kind: str, features: int) -> nn.Module:
    """As :func:`normalisation` for vectors (B, D)."""
    return nn.BatchNorm1d(features) if kind == "batch" else normalisation(kind, features)


def he(net: nn.Module) -> None:
    """Initialise convs as torchvision does, in place: weights N(0, 2 / fan out), biases 0."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def freeze(net: Net, train: str, *, pretrained: str | None, new: Sequence[str] = ()) -> Net:
    """Let only part of ``net`` learn, in place: ``all``, the ``head``, or ``bn`` (BN and head).

    ``new`` are modules that no file of weights has, and which learn in any case. What is frozen
    never travels, and a BatchNorm among it keeps its statistics. Freezing weights that nobody has
    trained is refused.
    """
    if choice("train", train, ("all", "head", "bn")) == "all":
        return net
    if pretrained is None:
        raise ConfigError(
            f"train is {train!r}, which freezes weights that nobody has trained; "
            "set pretrained too, or train=all"
        )
    learns = head_keys(net) | (batch_norm_keys(net) if train == "bn" else set())
    net.frozen = frozenset(
        key for key in net.state_dict() if key not in learns and key.partition(".")[0] not in new
    )
    return net
