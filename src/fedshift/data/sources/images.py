"""Domains of encoded images: listed from folders, decoded once, in threads, to one size.

``discover``, ``listed`` and ``hub`` build an :class:`ImageSource`, whose ``read`` the preparation
calls; a deployed site reads its folder the same way. A file that cannot be decoded is left out and
reported by name, never replaced.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from fedshift.base.errors import DataError
from fedshift.base.extras import require
from fedshift.base.files import home
from fedshift.base.process import cores
from fedshift.data.sources.limits import Limits, estimate, require_room
from fedshift.data.sources.pixels import (
    DICOM,
    SUFFIXES,
    Decoder,
    Deep,
    Encoded,
    PixelArray,
    Span,
    common_span,
    flat,
    peek,
    to_size,
)  # fmt: skip
from fedshift.data.sources.source import Read, assemble
from fedshift.data.sources.walk import files_below, refusal, visible

SPLITS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "testing": 2}
LARGE = 2**29  # bytes above which a domain is decoded to disk instead of memory
BATCH = 8  # images that a thread takes at once


@dataclass(frozen=True)
class Item:
    """One image: its id, class, split (-1 if the source has none), and file or reader of bytes."""

    id: str
    label: str
    split: int
    data: Encoded


@dataclass(frozen=True)
class ImageSource:
    """A domain of encoded images."""

    name: str
    items: tuple[Item, ...]
    left_out: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that occur, sorted."""
        return tuple(sorted({item.label for item in self.items}))

    def gigabytes(self, classes: Sequence[str], size: int | None) -> float:
        """What the images of the given classes will take; without a size, as the first one says."""
        chosen = set(classes)
        items = [item for item in self.items if item.label in chosen]
        first = (peek(item.data) for item in islice(items, 20))
        sides = (size, size) if size else next((s for s in first if s), (0, 0))
        return estimate(len(items), *sides)

    def read(self, classes: Sequence[str], size: int | None) -> Read:
        """Decode the images of the given classes."""
        order = {name: i for i, name in enumerate(classes)}
        items = [item for item in self.items if item.label in order]
        found = decode_items(self.name, items, size, self.limits)
        items = [items[i] for i in found.kept]
        y = np.array([order[item.label] for item in items], dtype=np.int64)
        split = np.array([item.split for item in items], dtype=np.int8)
        given = split if (split >= 0).all() else None
        domain = assemble(self.name, found.x, y, given, classes)
        left_out = (*self.left_out, *found.problems)
        ids = tuple(item.id for item in items)
        span = found.span.limits if found.span else None
        return Read(domain, ids, left_out, found.notes, span)


@dataclass(frozen=True)
class Decoded:
    """Pixels (n, H, W, 3) of the readable images, their positions, lines about the others."""

    x: PixelArray
    kept: list[int]
    problems: list[str]
    notes: tuple[str, ...] = ()
    span: Span | None = None  # by which images of more than 8 bits became bytes


def decode_all(
    name: str, items: Sequence[Item], size: int | None
) -> tuple[PixelArray, list[int], list[str]]:
    """Pixels (n, H, W, 3) of the readable images, their positions, a line for each other one."""
    found = decode_items(name, items, size, Limits())
    return found.x, found.kept, found.problems


def decode_items(
    name: str, items: Sequence[Item], size: int | None, limits: Limits, span: Span | None = None
) -> Decoded:
    """Decode images in threads; those of more than 8 bits twice, first for their range.

    ``span`` is that range if it is known, as of images that a model was trained on.
    """
    if any(isinstance(i.data, Path) and i.data.suffix.lower() in DICOM for i in items):
        require("pydicom", "DICOM images need pydicom", "'fedshift[dicom]'")
    decoder = Decoder(size, limits)
    rows = _Rows(items, limits)
    for i, found in enumerate(_decoded(name, [item.data for item in items], decoder)):
        rows.add(i, found)
    if rows.x is None:
        raise DataError(
            f"domain {name!r} has no image that can be read"
            + (f"; the first: {rows.problems[0]}" if rows.problems else "; expected class/*.jpg")
        )
    span, notes = _fill_deep(name, rows, decoder, span)
    return Decoded(rows.x[: len(rows.kept)], rows.kept, rows.problems, notes, span)


class _Rows:
    """The array that images are decoded into, row by row, in order."""

    def __init__(self, items: Sequence[Item], limits: Limits) -> None:
        self.items, self.limits = items, limits
        self.x: PixelArray | None = None
        self.kept: list[int] = []
        self.problems: list[str] = []
        self.deep: dict[int, Deep] = {}  # by row

    def add(self, i: int, found: PixelArray | Deep | str) -> None:
        """Take item ``i`` as it was decoded."""
        if isinstance(found, str):
            self.problems.append(f"{self.items[i].id}: {found}; replace or delete the file")
            return
        if self.x is None:
            require_room(len(self.items), found.shape[0], found.shape[1], self.limits)
            self.x = scratch((len(self.items), *found.shape))
        if found.shape != self.x.shape[1:]:
            first = self.items[self.kept[0]].id
            raise DataError(
                f"images differ in size: {first} is {self.x.shape[2]}x{self.x.shape[1]}, "
                f"{self.items[i].id} is {found.shape[1]}x{found.shape[0]}; set size, such as "
                "size=64"
            )
        if isinstance(found, Deep):
            self.deep[len(self.kept)] = found
        else:
            self.x[len(self.kept)] = found
        self.kept.append(i)


def _fill_deep(
    name: str, rows: _Rows, decoder: Decoder, known: Span | None
) -> tuple[Span | None, tuple[str, ...]]:
    """Decode the images of more than 8 bits by the known or their common range; say which it is."""
    if not rows.deep:
        return None, ()
    span = known or common_span(rows.deep.values())
    data = [rows.items[rows.kept[row]].data for row in rows.deep]
    again = _decoded(name, data, lambda one: decoder(one, span))
    for row, found in zip(rows.deep, again, strict=True):
        if isinstance(found, str | Deep):
            raise DataError(f"{rows.items[rows.kept[row]].id} changed while it was read; try again")
        assert rows.x is not None
        rows.x[row] = found
    count = f"{len(rows.deep)} images of more than 8 bits"
    return span, (f"domain {name!r} has {count}; their values {span} became 0 to 255",)


def scratch(shape: tuple[int, ...]) -> PixelArray:
    """An array to fill: in memory, or mapped to an unnamed temporary file if it is large."""
    if np.prod(shape, dtype=np.int64) < LARGE:
        return np.empty(shape, dtype=np.uint8)
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=home()) as file:
        return np.memmap(file, dtype=np.uint8, mode="w+", shape=shape)


Decode = Callable[[Encoded], PixelArray | Deep | str]


def _decoded(
    name: str, data: Sequence[Encoded], decode: Decode
) -> Iterator[PixelArray | Deep | str]:
    """Decode in threads, in order; Pillow releases the GIL while it decodes and resizes.

    Only a few batches per thread are under way, so that decoded images do not pile up in memory.
    """
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    threads = min(8, cores())
    waiting: deque[Future[list[PixelArray | Deep | str]]] = deque()
    with bar, _own_limit(), ThreadPoolExecutor(threads) as pool:
        task = bar.add_task(f"decoding {name}", total=len(data))
        for start in range(0, len(data) + 3 * threads * BATCH, BATCH):
            if batch := data[start : start + BATCH]:
                waiting.append(pool.submit(lambda some: [decode(one) for one in some], batch))
            if start >= 3 * threads * BATCH and waiting:
                found = waiting.popleft().result()
                bar.advance(task, len(found))
                yield from found


@contextmanager
def _own_limit() -> Iterator[None]:
    """Let our limit on pixels stand alone: Pillow's own is a constant that only warns."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def resize_all(x: NDArray[Any], size: int | None, limits: Limits | None = None) -> NDArray[Any]:
    """Decoded images (N, H, W, 3), resized."""
    if size is None or x.shape[1:3] == (size, size):
        return x
    require_room(len(x), size, size, limits or Limits())
    out = scratch((len(x), size, size, x.shape[3]))
    for i, pixels in enumerate(x):
        out[i] = np.asarray(to_size(flat(Image.fromarray(pixels)), size))
    return out


def rotate_all(x: NDArray[Any], degrees: float) -> NDArray[Any]:
    """Images rotated counter-clockwise by ``degrees``; nearest pixel, black corners."""
    if degrees % 360 == 0:
        return x
    turned = [np.asarray(Image.fromarray(pixels).rotate(degrees)) for pixels in x]
    return np.stack(turned) if turned else x


def tree_source(
    folder: Path, name: str, alias: Callable[[str], str] = str, *, root: Path | None = None
) -> ImageSource:
    """A domain from ``folder/class/*.jpg``, or from ``folder/{train,val,test}/class/*.jpg``.

    Nothing outside ``root`` is read; it is the folder itself if not given.
    """
    if [p.name for p in visible(folder)] == ["images"]:  # Office-31 is published like this
        folder /= "images"
    parts = [p for p in visible(folder) if p.is_dir()]
    groups = [(folder, -1)]
    if parts and all(p.name.lower() in SPLITS for p in parts):
        groups = [(p, SPLITS[p.name.lower()]) for p in parts]
    listing = _Listing((root or folder).resolve())
    for group, split in groups:
        listing.add_classes(group, split, alias)
    base = str(folder.parent) + os.sep
    named = [Item(i.id.removeprefix(base), i.label, i.split, i.data) for i in listing.items]
    return ImageSource(name, tuple(named), tuple(listing.left_out))


class _Listing:
    """Images found so far, and a line for each file that is none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.items: list[Item] = []
        self.left_out: list[str] = []

    def add_classes(self, folder: Path, split: int, alias: Callable[[str], str]) -> None:
        """Add what is in the class folders of a folder."""
        if reason := refusal(folder, self.root):
            self.left_out.append(f"{folder}: {reason}")
            return
        for path in visible(folder):
            if reason := refusal(path, self.root):
                self.left_out.append(f"{path}: {reason}")
            elif path.is_dir():
                self.add_class(path, alias(path.name), split)
            else:
                self.left_out.append(f"{path}: lies outside a class folder; move it into one")

    def add_class(self, folder: Path, label: str, split: int) -> None:
        """Add the images of a class."""
        files, refused = files_below(folder, self.root)
        self.left_out += refused
        before = len(self.items)
        for path in files:
            if path.suffix.lower() in SUFFIXES:
                self.items.append(Item(str(path), label, split, path))
            else:
                kinds = ", ".join(SUFFIXES)
                self.left_out.append(f"{path}: is not an image; expected {kinds}; remove it")
        if len(self.items) == before:
            self.left_out.append(f"{folder}: has no images; fill it or remove it")
