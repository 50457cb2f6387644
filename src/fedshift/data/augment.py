"""Random augmentation of a batch of images on tensors, without a loop over samples.

A client's visit applies the scenario's :class:`Augment` to each training batch. Every operation
takes floats (B, C, H, W) in [0, 1] and draws once per image from the generator it is given; it must
never write to its input or use a global generator. Normalisation comes afterwards, by the
scenario's ``pixels``, because padding is black (0) and the colour operations need [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Generator, Tensor

from fedshift.base.errors import DataError

GREY_WEIGHTS = (0.2989, 0.587, 0.114)  # ITU-R 601, as torchvision rounds it
TRIES = 10  # draws of a resized crop before it is clipped to the image, as torchvision's
Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0)]


def crop(x: Tensor, generator: Generator, *, padding: int = 4) -> Tensor:
    """Pad each image with black and cut a window of its own size at a random place."""
    if not padding:
        return x
    (n, channels, height, width), device = x.shape, x.device
    padded = F.pad(
        x.permute(0, 2, 3, 1), (0, 0, padding, padding, padding, padding)
    )  # (B, H', W', C)
    top, left = torch.randint(
        2 * padding + 1, (2, n, 1), generator=generator, device=generator.device
    ).to(device)  # (B, 1) each
    tall, wide = padded.shape[1:3]
    line = torch.arange(n, device=device).view(-1, 1) * tall + top  # (B, 1) first line kept
    first = (line + torch.arange(height, device=device)) * wide + left  # (B, H) first pixel kept
    # Overlapping view: entry i is the line of `width` pixels from pixel i. Copies whole lines.
    lines = padded.contiguous().view(-1).unfold(0, width * channels, channels)
    kept = lines.index_select(0, first.flatten())
    return kept.view(n, height, width, channels).permute(0, 3, 1, 2)


def flip(x: Tensor, generator: Generator, *, p: float = 0.5) -> Tensor:
    """Mirror each image left to right with probability ``p``."""
    turned = _uniform(x, generator) < p  # (B,)
    return torch.where(turned.view(-1, 1, 1, 1), x.flip(3), x)


def resized_crop(
    x: Tensor,
    generator: Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Cut a random window, resized to the image; ``scale`` is its area, ``ratio`` width/height.

    The window is drawn as in torchvision: uniform area, log-uniform ratio, drawn again if it does
    not fit, at most ten times. It differs in that the window is continuous instead of whole pixels,
    and that the resizing is bilinear without antialiasing.
    """
    shape = (TRIES, len(x))
    area = _uniform(x, generator, *scale, shape=shape)
    odd = _uniform(x, generator, math.log(ratio[0]), math.log(ratio[1]), shape=shape).exp()
    odd = odd * (x.shape[2] / x.shape[3])  # wide over high, each as a part of the image's
    sides = torch.stack([(area * odd).sqrt(), (area / odd).sqrt()])  # (2, TRIES, B)
    fits = (sides <= 1).all(0)  # (TRIES, B)
    first = fits.to(torch.uint8).argmax(0)  # (B,) 0 if none fits
    size = sides[:, first, torch.arange(len(x), device=x.device)].clamp(max=1)  # (2, B)
    centre = (1 - size) * _uniform(x, generator, -1, 1, shape=(2, len(x)))
    zero = torch.zeros_like(size[0])
    rows = ([size[0], zero, centre[0]], [zero, size[1], centre[1]])
    return resample(x, torch.stack([torch.stack(row, 1) for row in rows], 1), "border")


def rotation(
    x: Tensor, generator: Generator, *, degrees: tuple[float, float] = (-15.0, 15.0)
) -> Tensor:
    """Rotate counter-clockwise by a random angle within ``degrees``; bilinear, black outside."""
    angle = _uniform(x, generator, *degrees) * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    tall = x.shape[2] / x.shape[3]
    rows = ([cos, -sin * tall, zero], [sin / tall, cos, zero])
    return resample(x, torch.stack([torch.stack(row, 1) for row in rows], 1), "zeros")


def grey(x: Tensor, generator: Generator, *, p: float = 0.1) -> Tensor:
    """Replace all channels by the luminance with probability ``p``."""
    chosen = _uniform(x, generator) < p  # (B,)
    return torch.where(chosen.view(-1, 1, 1, 1), luminance(x), x)


def colour_jitter(
    x: Tensor,
    generator: Generator,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Tensor:
    """Scale brightness, contrast and saturation by 1 +- strength, turn the hue by +-``hue`` turns.

    As in torchvision, with one difference: the order of the four changes is drawn once per batch,
    because an order per image would cost four times the work. The factors are drawn per image.
    """
    strengths = (brightness, contrast, saturation)
    drawn = [_uniform(x, generator, max(0.0, 1 - s), 1 + s).view(-1, 1, 1, 1) for s in strengths]
    shift = _uniform(x, generator, -hue, hue)
    order = torch.randperm(4, generator=generator, device=generator.device).tolist()
    changes: tuple[tuple[float, Callable[[Tensor], Tensor]], ...] = (
        (brightness, lambda z: (z * drawn[0]).clamp(0, 1)),
        (contrast, lambda z: blend(z, luminance(z).mean((1, 2, 3), keepdim=True), drawn[1])),
        (saturation, lambda z: blend(z, luminance(z), drawn[2])),
        (hue, lambda z: turn_hue(z, shift)),
    )
    for strength, change in (changes[i] for i in order):
        x = change(x) if strength else x
    return x


def luminance(x: Tensor) -> Tensor:
    """Weighted sum of the colour channels of each pixel, (B, 1, H, W)."""
    if x.shape[1] == 1:
        return x
    if x.shape[1] != 3:
        raise DataError(
            f"images have {x.shape[1]} channels; colours need 1 or 3; "
            "leave out grey and colour-jitter"
        )
    red, green, blue = x.split(1, dim=1)
    return (
        (GREY_WEIGHTS[0] * red).add_(green, alpha=GREY_WEIGHTS[1]).add_(blue, alpha=GREY_WEIGHTS[2])
    )


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Shift the hue of each image (B, 3, H, W) on the colour circle by ``turns`` (B,).

    A change of hue keeps HSV's value and saturation, hence each pixel's max and min: channel c is
    max - (max - min) * clip(min(k, 4 - k), 0, 1) with k = n_c + 6 h mod 6, n = (5, 3, 1).
    """
    if x.shape[1] == 1:
        return x
    most, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)  # (B, 1, H, W)
    spread = most - least
    red, green, blue = x.split(1, dim=1)
    safe = spread.where(spread > 0, 1)
    sixths = torch.where(
        most == red,
        (green - blue) / safe,
        torch.where(most == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    ) + 6 * turns.view(-1, 1, 1, 1)
    k = (x.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1) + sixths) % 6  # (B, 3, H, W)
    return most - spread * torch.minimum(k, 4 - k).clamp_(0, 1)


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate stored images (N, H, W, C) counter-clockwise by one angle; nearest pixel, black edges.

    Exact at multiples of 90 degrees. For preparing data sets (Rotated MNIST), so no generator.

    >>> rotate(torch.tensor([[1, 2], [3, 4]]).view(1, 2, 2, 1), 90).flatten().tolist()
    [2, 4, 1, 3]
    """
    height, width = images.shape[1:3]
    cos, sin = (round(f(math.radians(degrees)), 15) for f in (math.cos, math.sin))
    y = torch.arange(height, dtype=torch.float64).view(-1, 1) + 0.5 - height / 2  # (H, 1)
    x = torch.arange(width, dtype=torch.float64) + 0.5 - width / 2  # (W,)
    row = (sin * x + cos * y + height / 2).floor().long()  # (H, W), broadcast
    column = (cos * x - sin * y + width / 2).floor().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    found = images[:, row.clamp(0, height - 1), column.clamp(0, width - 1)]  # (N, H, W, C)
    return found * inside.unsqueeze(-1).to(images.dtype)


def _uniform(
    x: Tensor,
    generator: Generator,
    low: float = 0.0,
    high: float = 1.0,
    *,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """One uniform draw per image, (B,), on the device of the images."""
    drawn = torch.rand(shape or (len(x),), generator=generator, device=generator.device)
    return (low + (high - low) * drawn).to(x.device, x.dtype)


def resample(x: Tensor, theta: Tensor, outside: str) -> Tensor:
    """Resample each image by its affine map ``theta`` (B, 2, 3) from output to input positions."""
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)  # (B, H, W, 2)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=outside, align_corners=False)


def blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """``other`` + ``factor`` (x - other), clipped to [0, 1]; ``factor`` is (B, 1, 1, 1)."""
    return torch.lerp(other.expand_as(x), x, factor.expand_as(x)).clamp_(0, 1)


class _Op(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Crop(_Op):
    """Parameters of :func:`crop`."""

    kind: Literal["crop"] = "crop"
    padding: Annotated[int, Field(ge=0)] = 4

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Apply it."""
        return crop(x, generator, padding=self.padding)


class Flip(_Op):
    """Parameters of :func:`flip`."""

    kind: Literal["flip"] = "flip"
    p: Probability = 0.5

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Apply it."""
        return flip(x, generator, p=self.p)


class ResizedCrop(_Op):
    """Parameters of :func:`resized_crop`; a fixed ratio is a range of one point."""

    kind: Literal["resized-crop"] = "resized-crop"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale is {self.scale}; it must be a range within (0, 1]")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio is {self.ratio}; it must be a range of positive numbers")
        return self

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Apply it."""
        return resized_crop(x, generator, scale=self.scale, ratio=self.ratio)


class Rotation(_Op):
    """Parameters of :func:`rotation`."""

    kind: Literal["rotation"] = "rotation"
    degrees: tuple[float, float] = (-15.0, 15.0)

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Apply it."""
        return rotation(x, generator, degrees=self.degrees)


class Grey(_Op):
    """Parameters of :func:`grey`."""

    kind: Literal["grey"] = "grey"
    p: Probability = 0.1

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Apply it."""
        return grey(x, generator, p=self.p)


class ColourJitter(_Op):
    """Parameters of :func:`colour_jitter`."""

    kind: Literal["colour-jitter"] = "colour-jitter"
    brightness: Strength = 0.0
    contrast: Strength = 0.0
    saturation: Strength = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Apply it."""
        return colour_jitter(x, generator, **self.model_dump(exclude={"kind"}))


Op = Annotated[
    Crop | Flip | ResizedCrop | Rotation | Grey | ColourJitter,
    Field(discriminator="kind"),
]


class Augment(BaseModel):
    """The augmentation of a scenario: operations on each training batch, in this order.

    >>> Augment.model_validate({"ops": [{"kind": "flip", "p": 1}]}).ops
    (Flip(kind='flip', p=1.0),)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ops: tuple[Op, ...] = ()


def apply(augment: Augment, x: Tensor, generator: Generator) -> Tensor:
    """The batch (B, C, H, W) after all operations; the same tensor if there are none."""
    with torch.no_grad():
        for op in augment.ops:
            x = op(x, generator)
    return x


PRESETS: dict[str, Augment] = {
    "none": Augment(),  # FDSE and FedKA: pixels / 255 and nothing else
    "f2dc": Augment(ops=(Crop(), Flip())),
    # The released code flips digits too (use "f2dc" for that); a mirrored 2 is no digit.
    "f2dc-digits": Augment(ops=(Crop(),)),
    "csac": Augment(
        ops=(
            ResizedCrop(scale=(0.8, 1.0)),
            Flip(),
            ColourJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4),
            Grey(p=0.1),
        )
    ),
    # Their code crops and flips each image once, when it is loaded, not anew in every batch.
    "feddebias-cifar100": Augment(ops=(Crop(), Flip())),
}
