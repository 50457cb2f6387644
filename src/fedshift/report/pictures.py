"""Figures of analyses in a page: one place where a picture can be embedded as an image.

``report.html`` shows them in the order given. A picture is put into the page as an image, never as
markup: whatever an SVG holds, a browser runs no script of an image.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.report import optional

KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg", ".webp": "image/webp"}
LARGEST = 4_000_000  # bytes; a page is sent around


@dataclass(frozen=True)
class PagePicture:
    """An image with its title, what it shows, and how it was made (a command, a run, n)."""

    title: str
    image: bytes
    kind: str = "image/png"
    text: str = ""

    @property
    def address(self) -> str:
        """The image itself as an address (a data URI)."""
        return f"data:{self.kind};base64,{base64.b64encode(self.image).decode()}"


def drawn(title: str, figure: Any, text: str = "") -> PagePicture:
    """A matplotlib figure as a picture: that of a finding, with its sentence and notes as text."""
    return PagePicture(title, optional.figures().png(figure), text=text)


def pictures_in(paths: Sequence[Path]) -> list[PagePicture]:
    """The pictures in the folder ``analyses`` of each path, by their names."""
    found = [file for path in paths for file in sorted((path / "analyses").glob("*"))]
    return [picture_of(file) for file in found if file.suffix.lower() in KINDS]


def picture_of(path: Path) -> PagePicture:
    """A picture from a file; its title is the file's name."""
    if not path.is_file():
        raise ConfigError(f"{path} is no file; give a picture ({', '.join(KINDS)})")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path} ends in {path.suffix!r}; a picture is one of {', '.join(KINDS)}")
    if path.stat().st_size > LARGEST:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes; a picture has up to {LARGEST}")
    return PagePicture(path.stem.replace("_", " "), path.read_bytes(), kind)
