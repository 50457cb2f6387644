"""How much memory preparing images may take: estimated before anything is decoded, then refused.

The readers of images ask it, ``library.prepare`` passes on what the user allows. It must never
let a typing error in a size, or a file made to hurt, take the machine down.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.base.errors import DataError
from fedshift.base.process import cores

WORKING = 8  # bytes per pixel of an image at work: four in Pillow, three as an array, one to spare


@dataclass(frozen=True)
class Limits:
    """What a preparation may take."""

    gigabytes: float = 8.0  # of all prepared images together, and of the ones being decoded
    megapixels: float = 64.0  # of one encoded image

    @property
    def pixels(self) -> int:
        """Pixels that one encoded image may have."""
        return int(self.megapixels * 1e6)


def estimate(rows: int, height: int, width: int) -> float:
    """Gigabytes of ``rows`` RGB images, and of those that are decoded at the same time."""
    at_work = min(rows, cores()) * WORKING
    return (3 * rows + at_work) * height * width / 1e9


def require_room(rows: int, height: int, width: int, limits: Limits) -> None:
    """Raise if so many images of this size would take more than the limit."""
    refuse_above(estimate(rows, height, width), f"{rows} images at {width}x{height}", limits)


def refuse_above(gigabytes: float, what: str, limits: Limits) -> None:
    """Raise if ``what`` would take more gigabytes than the limit."""
    if gigabytes > limits.gigabytes:
        raise DataError(
            f"{what} would take about {gigabytes:,.1f} GB, more than the limit of "
            f"{limits.gigabytes:g} GB; choose a smaller size, or prepare with a higher limit",
            "size=PIXELS",
            f"max_gb={int(gigabytes) + 1}",
        )
