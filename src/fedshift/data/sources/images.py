"""Domains of encoded images: listed from folders, decoded once, in threads, to one size.

``discover`` and ``hub`` build an :class:`ImageSource`, whose ``read`` the preparation calls; a
deployed site reads its folder the same way. A file that cannot be decoded is left out and reported
by name, never replaced.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import Progress

from fedshift.base.errors import DataError
from fedshift.base.files import home
from fedshift.data.sources.source import Read, assemble

PixelArray = NDArray[np.uint8]
SUFFIXES = (".jpg", ".jpeg", ".png")
SPLITS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "testing": 2}
BROKEN = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)
LARGE = 2**29  # bytes above which a domain is decoded to disk instead of memory


@dataclass(frozen=True)
class Item:
    """One image: its id, class, split (-1 if the source has none), and file or reader of bytes."""

    id: str
    label: str
    split: int
    data: Path | Callable[[], bytes]


@dataclass(frozen=True)
class ImageSource:
    """A domain of encoded images."""

    name: str
    items: tuple[Item, ...]
    left_out: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that occur, sorted."""
        return tuple(sorted({item.label for item in self.items}))

    def read(self, classes: Sequence[str], size: int | None) -> Read:
        """Decode the images of the given classes."""
        order = {name: i for i, name in enumerate(classes)}
        items = [item for item in self.items if item.label in order]
        x, kept, problems = decode_all(self.name, items, size)
        items = [items[i] for i in kept]
        y = np.array([order[item.label] for item in items], dtype=np.int64)
        split = np.array([item.split for item in items], dtype=np.int8)
        domain = assemble(self.name, x, y, split if (split >= 0).all() else None, classes)
        return Read(domain, tuple(item.id for item in items), (*self.left_out, *problems))


def decode_all(
    name: str, items: Sequence[Item], size: int | None
) -> tuple[PixelArray, list[int], list[str]]:
    """Pixels (n, H, W, 3) of the readable images, their positions, a line for each other one."""
    x: PixelArray | None = None
    kept: list[int] = []
    problems: list[str] = []
    for i, found in enumerate(_decoded(name, items, size)):
        if isinstance(found, str):
            problems.append(f"{items[i].id}: {found}; replace or delete the file")
            continue
        if x is None:
            x = scratch((len(items), *found.shape))
        if found.shape != x.shape[1:]:
            raise DataError(
                f"images differ in size: {items[kept[0]].id} is {x.shape[2]}x{x.shape[1]}, "
                f"{items[i].id} is {found.shape[1]}x{found.shape[0]}; set size, such as size=64"
            )
        x[len(kept)] = found
        kept.append(i)
    if x is None:
        raise DataError(
            f"domain {name!r} has no image that can be read"
            + (f"; the first: {problems[0]}" if problems else "; expected class/*.jpg or *.png")
        )
    return x[: len(kept)], kept, problems


def scratch(shape: tuple[int, ...]) -> PixelArray:
    """An array to fill: in memory, or mapped to an unnamed temporary file if it is large."""
    if np.prod(shape, dtype=np.int64) < LARGE:
        return np.empty(shape, dtype=np.uint8)
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=home()) as file:
        return np.memmap(file, dtype=np.uint8, mode="w+", shape=shape)


def _decoded(name: str, items: Sequence[Item], size: int | None) -> Iterator[PixelArray | str]:
    """Decode in threads, in order; Pillow releases the GIL while it decodes and resizes."""
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with bar, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        task = bar.add_task(f"decoding {name}", total=len(items))
        for start in range(0, len(items), 1024):  # at most this many decoded images wait in memory
            chunk = [item.data for item in items[start : start + 1024]]
            for found in pool.map(lambda data: decode(data, size), chunk):
                bar.advance(task)
                yield found


def decode(data: Path | Callable[[], bytes], size: int | None) -> PixelArray | str:
    """RGB pixels (H, W, 3), or the reason, as text, why the image cannot be decoded."""
    try:
        with Image.open(data if isinstance(data, Path) else io.BytesIO(data())) as image:
            return np.asarray(_rgb(image, size))
    except UnidentifiedImageError:
        return "is not an image"
    except BROKEN as error:
        return f"cannot be decoded ({error})"


def _rgb(image: Image.Image, size: int | None) -> Image.Image:
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("RGB")
    if size is None or image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR)  # antialiased when it shrinks


def resize_all(x: NDArray[Any], size: int | None) -> NDArray[Any]:
    """Decoded images (N, H, W, 3), resized."""
    if size is None or x.shape[1:3] == (size, size):
        return x
    out = scratch((len(x), size, size, x.shape[3]))
    for i, pixels in enumerate(x):
        out[i] = np.asarray(_rgb(Image.fromarray(pixels), size))
    return out


def rotate_all(x: NDArray[Any], degrees: float) -> NDArray[Any]:
    """Images rotated counter-clockwise by ``degrees``; nearest pixel, black corners."""
    if degrees % 360 == 0:
        return x
    turned = [np.asarray(Image.fromarray(pixels).rotate(degrees)) for pixels in x]
    return np.stack(turned) if turned else x


def tree_source(folder: Path, name: str, alias: Callable[[str], str] = str) -> ImageSource:
    """A domain from ``folder/class/*.jpg``, or from ``folder/{train,val,test}/class/*.jpg``."""
    if [p.name for p in visible(folder)] == ["images"]:  # Office-31 is published like this
        folder /= "images"
    groups = [(folder, -1)]
    inside = [p for p in visible(folder) if p.is_dir()]
    if inside and all(p.name.lower() in SPLITS for p in inside):
        groups = [(p, SPLITS[p.name.lower()]) for p in inside]
    items: list[Item] = []
    left_out: list[str] = []
    for root, split in groups:
        for path in visible(root):
            if path.is_dir():
                _list_class(path, alias(path.name), split, (items, left_out))
            else:
                left_out.append(f"{path}: lies outside a class folder; move it into one")
    base = str(folder.parent) + os.sep
    named = [Item(i.id.removeprefix(base), i.label, i.split, i.data) for i in items]
    return ImageSource(name, tuple(named), tuple(left_out))


def _list_class(folder: Path, label: str, split: int, lists: tuple[list[Item], list[str]]) -> None:
    """Add the images of a class to the first list, a line for each other file to the second."""
    items, left_out = lists
    before = len(items)
    for path in sorted(p for p in folder.rglob("*") if not p.is_dir() and not _hidden(p)):
        if path.suffix.lower() in SUFFIXES:
            items.append(Item(str(path), label, split, path))
        else:
            left_out.append(f"{path}: is not an image; expected {', '.join(SUFFIXES)}; remove it")
    if len(items) == before:
        left_out.append(f"{folder}: has no images; fill it or remove it")


def visible(folder: Path) -> list[Path]:
    """Entries of a folder, sorted, without hidden files."""
    return sorted(p for p in folder.iterdir() if not _hidden(p))


def _hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name in ("Thumbs.db", "desktop.ini", "__MACOSX")
