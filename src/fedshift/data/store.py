"""Prepared domains on disk: memory-mapped arrays with checksums, shared between processes."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift.base.errors import DataError
from fedshift.data.samples import Domain

ARRAYS = ("x", "y", "split")
SMALL = 16 * 2**20  # bytes that are hashed at every load; above, sizes and stamps are compared


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def beside(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill that takes the place of ``folder`` at the end, or vanishes on an error.

    Who comes second loses, unless it is to ``replace`` what is there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name[:40]}.", dir=folder.parent))
    old = part.with_name(f"{part.name}.old")
    try:
        yield part
        part.chmod(0o755)
        if replace:
            with suppress(FileNotFoundError):
                folder.rename(old)
        try:
            part.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster, with the same content
                raise
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for rest in (part, old):
            shutil.rmtree(rest, ignore_errors=True)


def write_domain(folder: Path, domain: Domain, ids: Sequence[str] = ()) -> None:
    """Write a domain beside ``folder`` and rename it into place.

    ``ids`` say where a row comes from: file names, or row numbers if there are none.
    """
    with beside(folder, replace=True) as part:  # what is there is damaged: readers check first
        for name in ARRAYS:
            np.save(part / f"{name}.npy", getattr(domain, name).numpy())
        if len(ids):
            np.save(part / "ids.npy", np.char.encode(np.asarray(ids, dtype=np.str_), "utf-8"))
        files = sorted(part.glob("*.npy"))
        card = {
            "name": domain.name,
            "classes": list(domain.classes),
            "sha256": {file.stem: digest(file) for file in files},
            "stamp": {file.stem: _stamp(file) for file in files},
        }
        (part / "domain.json").write_text(json.dumps(card, indent=2))


def _stamp(path: Path) -> list[int]:
    """Size and time of a file: both are kept by a rename, neither by an edit."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def read_domain(folder: Path, *, verify: bool | None = None) -> Domain:
    """A domain from disk without reading its images yet; a damaged one is an error.

    ``verify`` compares checksums; None does so for small domains, and for files that were moved.
    """
    card = read_card(folder)
    stamps = card.get("stamp", {})
    small = sum((folder / f"{name}.npy").stat().st_size for name in ARRAYS) < SMALL
    full = small if verify is None else verify
    arrays: dict[str, NDArray[np.generic]] = {}
    for name in ARRAYS:
        path = folder / f"{name}.npy"
        if (full or stamps.get(name) != _stamp(path)) and digest(path) != card["sha256"][name]:
            raise DataError(f"{path} is damaged: its checksum does not match; delete {folder}")
        arrays[name] = np.load(path, mmap_mode="c")
    x, y, split = (torch.from_numpy(arrays[name]) for name in ARRAYS)
    return Domain(card["name"], x, y, split, tuple(card["classes"]))


def read_card(folder: Path) -> dict[str, Any]:
    """What is written beside the arrays of a domain."""
    card: dict[str, Any] = json.loads((folder / "domain.json").read_text())
    return card


def read_ids(folder: Path) -> list[str]:
    """File names or row numbers of a domain's rows."""
    path = folder / "ids.npy"
    if not path.exists():
        return [str(i) for i in range(len(np.load(folder / "y.npy", mmap_mode="r")))]
    return [str(one) for one in np.char.decode(np.load(path), "utf-8")]
