"""Prepared domains on disk: memory-mapped arrays with checksums, shared between processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray

from fedshift.data.samples import Domain
from fedshift.errors import DataError

ARRAYS = ("x", "y", "split")


def home() -> Path:
    """The user's cache: FEDSHIFT_HOME, or the platform's place for caches."""
    chosen = os.environ.get("FEDSHIFT_HOME")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("fedshift"))


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_domain(folder: Path, domain: Domain) -> None:
    """Write a domain beside ``folder`` and rename it into place; whoever comes second loses."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name in ARRAYS:
            np.save(part / f"{name}.npy", getattr(domain, name).numpy())
        sums = {name: digest(part / f"{name}.npy") for name in ARRAYS}
        card = {"name": domain.name, "classes": list(domain.classes), "sha256": sums}
        (part / "domain.json").write_text(json.dumps(card, indent=2))
        part.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)  # a damaged one: readers check before they use it
        part.rename(folder)
    except FileExistsError:
        pass  # another process was faster, with the same content
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_domain(folder: Path) -> Domain:
    """A domain from disk without reading its images yet; a damaged one is an error."""
    card = json.loads((folder / "domain.json").read_text())
    arrays: dict[str, NDArray[np.generic]] = {}
    for name in ARRAYS:
        path = folder / f"{name}.npy"
        if digest(path) != card["sha256"][name]:
            raise DataError(f"{path} is damaged: its checksum does not match; delete {folder}")
        arrays[name] = np.load(path, mmap_mode="c")
    x, y, split = (torch.from_numpy(arrays[name]) for name in ARRAYS)
    return Domain(card["name"], x, y, split, tuple(card["classes"]))
