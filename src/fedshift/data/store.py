"""Prepared domains on disk: one folder per domain, of memory-mapped arrays with checksums.

The dataset library and deployed sites write a domain here once and read it in every later run;
processes that map the same files share their memory. A folder is filled under a temporary name and
then renamed, so a reader never sees half a domain, and a damaged file is never used.

What is verified when: ``domain.json`` holds the SHA-256 and a stamp (size and modification time)
of each array. A small domain is hashed at every load. In a large one a file is hashed only if its
stamp has changed, as after a copy or an edit; an unchanged stamp is trusted, because hashing
gigabytes at every start would take longer than the start itself. ``verify=True`` hashes every file.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift.base.errors import DataError
from fedshift.base.tree import MALFORMED
from fedshift.data.samples import Domain

ARRAYS = ("x", "y", "split")
SMALL = 16 * 2**20  # bytes: below, every load compares checksums; above, stamps unless asked


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def beside(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end it is renamed to ``folder``, on an error removed.

    If ``folder`` exists by then, another process was faster and the new folder is discarded. With
    ``replace`` the existing one is moved aside first, deleted once the new one is in its place, and
    moved back if that fails.
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
    """Write a domain to ``folder``, through a temporary folder that is renamed into place.

    ``ids`` are the file names that the rows come from; without them a row is known by its number.
    """
    with beside(folder, replace=True) as part:  # callers read first: what exists is damaged
        for name in ARRAYS:
            np.save(part / f"{name}.npy", getattr(domain, name).numpy())
        if len(ids):
            np.save(part / "ids.npy", np.char.encode(np.asarray(ids, dtype=np.str_), "utf-8"))
        files = sorted(part.glob("*.npy"))
        card = {
            "name": domain.name,
            "classes": list(domain.classes),
            "drawn": domain.drawn,
            "sha256": {file.stem: digest(file) for file in files},
            "stamp": {file.stem: _stamp(file) for file in files},
        }
        (part / "domain.json").write_text(json.dumps(card, indent=2))


def _stamp(path: Path) -> list[int]:
    """Size and modification time of a file: a rename keeps both, an edit changes at least one."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def read_domain(folder: Path, *, verify: bool | None = None) -> Domain:
    """A domain from disk, memory-mapped: rows are read when used. A damaged file is an error.

    ``verify`` says whether to compare checksums; None does so for small domains. A file whose stamp
    differs from the recorded one is hashed in any case.
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
        arrays[name] = _stored(path, "c")
    x, y, split = (torch.from_numpy(arrays[name]) for name in ARRAYS)
    sums = {name: card["sha256"][name] for name in ARRAYS}
    return Domain(
        card["name"],
        x,
        y,
        split,
        tuple(card["classes"]),
        card.get("drawn"),
        combined(sums),
    )


def checksum(domain: Domain) -> str:
    """The checksum of a domain: the stored one, or computed as if the domain were stored.

    So a domain has the same checksum whether it was just made or is read from disk.
    """
    if domain.checksum:
        return domain.checksum
    sums = {}
    for name in ARRAYS:
        hashed = _Hashed()
        np.save(hashed, getattr(domain, name).numpy())
        sums[name] = hashed.found.hexdigest()
    return combined(sums)


def combined(sums: Mapping[str, str]) -> str:
    """One checksum from those of several arrays."""
    return hashlib.sha256(json.dumps(dict(sums), sort_keys=True).encode()).hexdigest()


class _Hashed(io.RawIOBase):
    """A file that is not kept: what is written to it is only hashed."""

    def __init__(self) -> None:
        self.found = hashlib.sha256()

    def writable(self) -> bool:
        """It can be written to."""
        return True

    def write(self, blob: Any) -> int:
        """Hash the bytes."""
        self.found.update(blob)
        return len(blob)


def fingerprint(domains: Mapping[str, Domain]) -> str:
    """A short hash of the content of several domains: names, classes, inputs, labels and splits."""
    content = {
        name: [list(domain.classes), checksum(domain)] for name, domain in sorted(domains.items())
    }
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=6).hexdigest()


def read_card(folder: Path) -> dict[str, Any]:
    """The record beside a domain's arrays: its name, classes, checksums and stamps."""
    path = folder / "domain.json"
    card: dict[str, Any] = {}
    try:
        card = json.loads(path.read_text())
        good = isinstance(card["name"], str) and all(isinstance(c, str) for c in card["classes"])
        good = good and {*ARRAYS} <= card["sha256"].keys() and hasattr(card.get("stamp", {}), "get")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise DataError(f"{path} is damaged: it is no record of a domain; delete {folder}")
    return card


def _stored(path: Path, mode: Literal["c", "r"]) -> NDArray[Any]:
    """An array of ours, memory-mapped; whatever numpy says about its header is one line."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode=mode)
    except (*MALFORMED, SyntaxError, EOFError, tokenize.TokenError) as error:
        raise DataError(f"{path} is damaged ({error}); delete {path.parent}") from None
    return found


def read_ids(folder: Path) -> list[str]:
    """Where each row comes from: its file name, or its row number if the source had no files."""
    path = folder / "ids.npy"
    if not path.exists():
        return [str(i) for i in range(len(_stored(folder / "y.npy", "r")))]
    try:
        return [str(one) for one in np.char.decode(_stored(path, "r"), "utf-8")]
    except (TypeError, ValueError, AttributeError) as error:  # the last: texts, not bytes
        raise DataError(f"{path} is damaged ({error}); prepare the data again") from None
