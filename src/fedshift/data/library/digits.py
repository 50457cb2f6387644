"""Five digit domains made of what scikit-learn and Pillow ship, after MNIST-M and SYN.

``embedded`` renders them as the dataset ``digits``, so that a first run needs no download. The
images must be a function of the seed alone; the cache is keyed by the text of this file.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from sklearn.datasets import load_digits, load_sample_images

DOMAINS: tuple[str, ...] = ("scan", "photo", "print", "meter", "outline")
SIZES: tuple[int, ...] = (150, 99, 350)  # train, val, test examples of each domain
SIDE = 32
FINE = 2 * SIDE  # drawn at twice the size and then halved, which smooths the edges
Floats = NDArray[np.float64]
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8]]
# Segments of a display as end points on a grid one wide and two high, in the order ABCDEFG.
SEGMENTS = (
    ((0, 0), (1, 0)),
    ((1, 0), (1, 1)),
    ((1, 1), (1, 2)),
    ((0, 2), (1, 2)),
    ((0, 1), (0, 2)),
    ((0, 0), (0, 1)),
    ((0, 1), (1, 1)),
)
LIT = ("ABCDEF", "BC", "ABDEG", "ABCDG", "BCFG", "ACDFG", "ACDEFG", "ABC", "ABCDEFG", "ABCDFG")


def render(seed: int = 0) -> dict[str, Arrays]:
    """Draw every domain: images (N, 32, 32, 3), labels (N,) and split (N,), 0 train, 1 val, 2 test.

    Each domain has its own generator, so that changing one of them leaves the others as they are.

    Example:
        >>> x, y, split = render(seed=0)["photo"]
        >>> x.shape, int((split == 0).sum())
        ((599, 32, 32, 3), 150)
    """
    scans, labels = load_digits(return_X_y=True)  # (1797, 64) in 0..16, (1797,)
    scans = scans.reshape(-1, 8, 8) / 16
    pages = dict(zip(("scan", "photo", "outline"), thirds(labels, seed), strict=True))
    domains: dict[str, Arrays] = {}
    for index, name in enumerate(DOMAINS):
        rng = np.random.default_rng((seed, index))
        if name in SCANNED:
            y = labels[pages[name]].astype(np.int64)
            images = [SCANNED[name](rng, scan) for scan in scans[pages[name]]]
        else:
            y = np.sort(np.arange(sum(SIZES), dtype=np.int64) % 10)
            images = [DRAWN[name](rng, int(digit)) for digit in y]
        order = rng.permutation(len(y))
        x = np.stack([_bytes(image) for image in images])  # (N, 32, 32, 3)
        domains[name] = x[order], y[order], stratified_split(y)[order]
    return domains


def thirds(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Deal the scans into three disjoint sets with the same classes, each sorted by class."""
    ties = np.random.default_rng((seed, len(DOMAINS))).random(len(labels))
    order = np.lexsort((ties, labels))  # by class, at random within a class
    return [order[start::3] for start in range(3)]


def stratified_split(y: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Spread train and val evenly over labels sorted by class: exact sizes, classes within one."""
    split = np.full(len(y), 2, np.uint8)
    for value, size in enumerate(SIZES[:2]):
        (rest,) = np.nonzero(split == 2)
        split[rest[np.arange(size) * len(rest) // size]] = value
    return split


def upsample(scan: Floats, side: int, *, margin: int = 1) -> Floats:
    """Enlarge a scan (8, 8) smoothly to (side, side) with a margin given in its own pixels."""
    padded = np.pad(scan, margin)
    scale = side / len(padded)
    smooth: Floats = ndimage.zoom(padded, scale, order=3, mode="nearest", grid_mode=True)
    return np.clip(smooth, 0, 1)  # the spline overshoots


def scan_image(rng: Generator, scan: Floats) -> Floats:
    """Show the handwriting as it was scanned, light on black."""
    ink = upsample(scan, SIDE) * rng.uniform(0.85, 1)
    return np.repeat(ink[..., None], 3, axis=2)


def photo_image(rng: Generator, scan: Floats) -> Floats:
    """Subtract the handwriting from a piece of a photograph, as MNIST-M does."""
    photo = _photographs()[rng.integers(2)]  # (H, W, 3)
    reach = int(rng.integers(SIDE, 3 * SIDE))
    top, left = rng.integers(np.array(photo.shape[:2]) - reach)
    piece = Image.fromarray(photo[top : top + reach, left : left + reach])
    crop = np.asarray(piece.resize((SIDE, SIDE), Image.Resampling.BILINEAR)) / 255
    return np.abs(crop - upsample(scan, SIDE)[..., None])


def print_image(rng: Generator, digit: int) -> Floats:
    """Typeset the digit between parts of two others, dark on light, in random colours."""
    canvas = Image.new("L", (FINE, FINE))
    pen = ImageDraw.Draw(canvas)
    size, stroke = int(rng.integers(44, 60)), int(rng.integers(4))
    x, y = FINE / 2 + rng.uniform(-4, 4, 2)
    step = size * rng.uniform(0.75, 0.95)
    for shift, text in ((-step, rng.integers(10)), (0, digit), (step, rng.integers(10))):
        pen.text((x + shift, y), str(text), 255, _font(size), "mm", stroke_width=stroke)
    mask = _warp(canvas, slant=rng.uniform(-0.2, 0.2), turn=rng.uniform(-0.15, 0.15))
    dark, light = _tones(rng)
    return _noisy(rng, _paint(mask, ink=dark, paper=light), 0.04)


def meter_image(rng: Generator, digit: int) -> Floats:
    """Light the segments of a display; the others stay faintly visible, as on the real thing."""
    canvases = _segments(rng, digit)
    slant = rng.uniform(0, 0.2)
    on, off = (_warp(canvas, slant=slant, turn=0.0) for canvas in canvases)  # (32, 32) each
    glow = ndimage.gaussian_filter(on, 2.5)
    light = np.clip(on + 0.6 * glow + rng.uniform(0.1, 0.3) * off, 0, 1)
    light = ndimage.gaussian_filter(light, rng.uniform(0, 0.8))
    ink, paper = _display(rng)
    return _noisy(rng, _paint(light, ink=ink, paper=paper), 0.03)


def outline_image(rng: Generator, scan: Floats) -> Floats:
    """Trace the edge of the handwriting with a coloured pen on ruled or squared paper."""
    body = upsample(scan, FINE, margin=2) > 0.45
    rim = ndimage.gaussian_filter((body ^ ndimage.binary_erosion(body, iterations=2)) * 1.3, 0.6)
    mask = np.clip(rim, 0, 1).reshape(SIDE, 2, SIDE, 2).mean(axis=(1, 3))  # (32, 32)
    dark, light = _tones(rng)
    sheet = _paint(_rules(rng), ink=rng.uniform(0.3, 0.7, 3), paper=light)
    return _noisy(rng, _paint(mask, ink=dark, paper=sheet), 0.02)


SCANNED: dict[str, Callable[[Generator, Floats], Floats]] = {
    "scan": scan_image,
    "photo": photo_image,
    "outline": outline_image,
}
DRAWN: dict[str, Callable[[Generator, int], Floats]] = {"print": print_image, "meter": meter_image}


@cache
def _photographs() -> list[NDArray[np.uint8]]:
    return list(load_sample_images().images)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _warp(canvas: Image.Image, *, slant: float, turn: float) -> Floats:
    """Shear and rotate about the centre, then halve to (32, 32) in 0..1."""
    rotate = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    m = np.array([[1, slant], [0, 1]]) @ rotate  # (2, 2), from output to input positions
    c = FINE / 2 - m @ np.full(2, FINE / 2)
    matrix = (m[0, 0], m[0, 1], c[0], m[1, 0], m[1, 1], c[1])
    affine, smooth = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    return np.asarray(canvas.transform(canvas.size, affine, matrix, smooth).reduce(2)) / 255


def _segments(rng: Generator, digit: int) -> tuple[Image.Image, Image.Image]:
    """Draw the lit segments of a digit on one canvas and the unlit ones on another."""
    pitch = rng.uniform((20, 18), (30, 24))  # (2,), length of a horizontal and a vertical segment
    corner = FINE / 2 - pitch * (0.5, 1) + rng.uniform(-4, 4, 2)
    thick = int(rng.integers(4, 8))
    lit, unlit = Image.new("L", (FINE, FINE)), Image.new("L", (FINE, FINE))
    for name, ends in zip("ABCDEFG", SEGMENTS, strict=True):
        start, stop = corner + np.array(ends) * pitch
        gap = (stop - start) / np.linalg.norm(stop - start) * (thick / 2 + 1)
        canvas = lit if name in LIT[digit] else unlit
        ImageDraw.Draw(canvas).line((*(start + gap), *(stop - gap)), fill=255, width=thick)
    return lit, unlit


def _rules(rng: Generator) -> Floats:
    """Rule half of the sheets and square the others; (32, 32), faint."""
    lines = np.zeros((SIDE, SIDE))
    step, start = rng.integers(5, 9), rng.integers(5)
    lines[start::step] = 0.4
    if rng.random() < 0.5:
        lines[:, start::step] = 0.4
    return lines


def _tones(rng: Generator) -> tuple[Floats, Floats]:
    """Draw a dark and a light colour, far enough apart in every channel to be read."""
    return rng.uniform(0, 0.4, 3), rng.uniform(0.6, 1, 3)


def _display(rng: Generator) -> tuple[Floats, Floats]:
    """Draw the colours of a light-emitting display, or of a liquid-crystal one in a fifth."""
    if rng.random() < 0.2:
        return rng.uniform(0, 0.25, 3), rng.uniform(0.5, 0.75, 3)
    ink = rng.uniform(0, 0.35, 3)
    ink[rng.integers(3)] = rng.uniform(0.6, 0.95)
    return ink, rng.uniform(0, 0.15, 3)


def _paint(mask: Floats, *, ink: Floats, paper: Floats) -> Floats:
    return paper + mask[..., None] * (ink - paper)  # (32, 32, 3)


def _noisy(rng: Generator, image: Floats, scale: float) -> Floats:
    return image + rng.normal(0, scale, image.shape)


def _bytes(image: Floats) -> NDArray[np.uint8]:
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
