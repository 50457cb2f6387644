"""One image, from a file or bytes to RGB pixels of one size, whatever kind people have.

``images`` calls it in threads. What an image becomes is decided here and nowhere else: it is turned
as its EXIF entry says, the first frame is taken, transparent parts are laid on white, and more than
8 bits are brought to 8 by a range that all images of a domain share. Nothing is cut off silently,
and no image is decoded that is larger than the limit or of a format outside the list.
"""

from __future__ import annotations

import importlib
import io
import stat
import struct
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fedshift.data.sources.limits import Limits

PixelArray = NDArray[np.uint8]
Encoded = Path | Callable[[], bytes]
DICOM = (".dcm", ".dicom")
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".gif", *DICOM)
FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "DIB", "WEBP", "GIF")
BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, OverflowError, struct.error,
    Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
DEPTHS = (8, 10, 12, 14, 16, 32)  # bits that cameras and scanners have
LARGE = 16_000_000  # pixels above which images are decoded one at a time


@dataclass(frozen=True)
class Span:
    """The values that become 0 and 255."""

    low: float
    high: float

    @property
    def limits(self) -> tuple[float, float]:
        """Both values, as they are kept in a file."""
        return self.low, self.high

    def to_bytes(self, values: NDArray[Any]) -> PixelArray:
        """Values as bytes, in proportion; what lies outside the span becomes 0 or 255."""
        scale = 255 / (self.high - self.low) if self.high > self.low else 0.0
        scaled = values.astype(np.float32)  # changed in place below: images are large
        scaled -= np.float32(self.low)
        scaled *= np.float32(scale)
        np.rint(scaled, out=scaled)
        return np.clip(scaled, 0, 255, out=scaled).astype(np.uint8)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Deep:
    """An image of more than 8 bits: its lowest and highest value, its shape once decoded."""

    low: float
    high: float
    whole: bool  # whole numbers
    shape: tuple[int, ...]


def common_span(images: Iterable[Deep]) -> Span:
    """One range for all images of a domain, so that equal values stay equal between images.

    Whole numbers from 0 on: the depth (8, 10, 12, 14, 16 bits) that holds the highest of them all.
    Fractions from 0 to 1: these. Otherwise from the lowest to the highest of them all.

    >>> common_span([Deep(3, 4000, True, ()), Deep(0, 90, True, ())])
    Span(low=0.0, high=4095.0)
    """
    found = list(images)
    low, high = min(d.low for d in found), max(d.high for d in found)
    if low >= 0 and all(d.whole for d in found):
        return Span(0.0, next((2.0**bits - 1 for bits in DEPTHS if high < 2**bits), high))
    return Span(0.0, 1.0) if low >= 0 and high <= 1 else Span(low, high)


class Decoder:
    """Decodes images to squares of ``size``; of large images only one at a time.

    A camera's image takes 100 MB while it is decoded. Eight threads with one large image each would
    take a gigabyte and more, so those wait for each other; small ones never do.
    """

    def __init__(self, size: int | None, limits: Limits | None = None) -> None:
        self.size, self.limits, self._large = size, limits or Limits(), Lock()

    def __call__(self, data: Encoded, span: Span | None = None) -> PixelArray | Deep | str:
        """RGB pixels (H, W, 3), or the reason, as text, why the image cannot be decoded.

        An image of more than 8 bits gives its range; with the ``span`` to use, its pixels.
        """
        try:
            if isinstance(data, Path):
                if not stat.S_ISREG(data.stat().st_mode):
                    return "is not a plain file"
                if data.suffix.lower() in DICOM:
                    return self._dicom(data)
            with Image.open(_opened(data), formats=FORMATS) as image:
                if too_large := self._too_large(*image.size):
                    return too_large
                many = image.width * image.height > LARGE
                with self._large if many else nullcontext():
                    return self._decoded(image, span)
        except UnidentifiedImageError:
            return "is not an image"
        except BROKEN as error:
            return f"cannot be decoded ({error})"

    def _too_large(self, width: int, height: int, frames: int = 1) -> str | None:
        if width * height * frames <= self.limits.pixels:
            return None
        return (
            f"has {width}x{height} pixels, more than the limit of {self.limits.megapixels:g} "
            "million: raise max_megapixels"
        )

    def _decoded(self, image: Image.Image, span: Span | None) -> PixelArray | Deep | str:
        turn(image)
        if not image.mode.startswith(("I", "F")):
            return np.asarray(to_size(flat(image), self.size))
        values = np.asarray(image)  # (H, W)
        if not np.isfinite(values).all():
            return "holds nan or inf"
        if span is None:
            sides = (self.size, self.size) if self.size else values.shape
            low, high = float(values.min()), float(values.max())
            return Deep(low, high, values.dtype.kind in "iu", (*sides, 3))
        grey = Image.fromarray(span.to_bytes(values))
        return np.asarray(to_size(grey.convert("RGB"), self.size))

    def _dicom(self, path: Path) -> PixelArray | str:
        dicom = importlib.import_module("pydicom")
        try:
            head = dicom.dcmread(path, stop_before_pixels=True)
            frames = int(head.get("NumberOfFrames") or 1)
            if too_large := self._too_large(int(head.Columns), int(head.Rows), frames):
                return too_large
            pixels = dicom_bytes(dicom.dcmread(path))
        except Exception as error:  # pydicom's parser raises whatever it meets
            return f"cannot be decoded ({str(error)[:200]})"
        return np.asarray(to_size(Image.fromarray(pixels).convert("RGB"), self.size))


def decode(data: Encoded, size: int | None) -> PixelArray | str:
    """One image by itself; one of more than 8 bits by its own depth."""
    decoder = Decoder(size)
    found = decoder(data)
    if isinstance(found, Deep):
        found = decoder(data, common_span([found]))
    assert not isinstance(found, Deep)
    return found


def peek(data: Encoded) -> tuple[int, int] | None:
    """Height and width of an image from its first bytes, None if it cannot be read."""
    try:
        if isinstance(data, Path) and data.suffix.lower() in DICOM:
            head = importlib.import_module("pydicom").dcmread(data, stop_before_pixels=True)
            return int(head.Rows), int(head.Columns)
        if isinstance(data, Path) and not data.is_file():
            return None
        with Image.open(_opened(data), formats=FORMATS) as image:
            return image.height, image.width
    except Exception:
        return None


def _opened(data: Encoded) -> Path | io.BytesIO:
    return data if isinstance(data, Path) else io.BytesIO(data())


def turn(image: Image.Image) -> None:
    """Turn an image upright in place, as a camera noted it; a broken note is no note."""
    image.load()
    with suppress(*BROKEN, ZeroDivisionError, AttributeError):
        orientation = image.getexif().get(0x0112, 1)
        if orientation != 1:
            ImageOps.exif_transpose(image, in_place=True)


def flat(image: Image.Image) -> Image.Image:
    """RGB; what is transparent shows a white page, not the colour that happens to lie below."""
    if image.mode in ("LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "RGBA" and image.getchannel("A").getextrema() != (255, 255):
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image)
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it


def to_size(image: Image.Image, size: int | None) -> Image.Image:
    """A square of ``size`` pixels a side; averaged when it shrinks."""
    if size is None or image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR)


def dicom_bytes(file: Any) -> PixelArray:
    """The first frame of a DICOM file as bytes: (H, W) grey or (H, W, 3) colour.

    Grey values go through the file's rescaling and its window (PS3.3 C.11.2.1.2), as a viewer shows
    them; without a window the whole range of the stored bits is used.
    """
    values = np.asarray(file.pixel_array)
    colour = int(file.get("SamplesPerPixel", 1)) == 3
    if int(file.get("NumberOfFrames") or 1) > 1:
        values = values[0]
    bits = int(file.BitsStored)
    if colour:
        return Span(0, 2**bits - 1).to_bytes(values)
    slope = float(file.get("RescaleSlope", 1) or 1)
    offset = float(file.get("RescaleIntercept", 0) or 0)
    signed = int(file.get("PixelRepresentation", 0)) == 1
    first = -(2 ** (bits - 1)) if signed else 0
    span = _window(file) or Span(first * slope + offset, (first + 2**bits - 1) * slope + offset)
    out = span.to_bytes(values.astype(np.float32) * np.float32(slope) + np.float32(offset))
    return 255 - out if file.get("PhotometricInterpretation") == "MONOCHROME1" else out


def _window(file: Any) -> Span | None:
    centre, width = (np.ravel(file.get(name) or []) for name in ("WindowCenter", "WindowWidth"))
    if not len(centre) or not len(width) or float(width[0]) <= 1:
        return None
    middle, reach = float(centre[0]) - 0.5, (float(width[0]) - 1) / 2
    return Span(middle - reach, middle + reach)
