"""Readers of arrays: npz per domain and MATLAB files.

``discover`` and ``vectors`` call them. Nothing is ever unpickled, and a row with a wrong label or a
number that is not finite is left out and reported.

An npz of a domain has ``x`` (uint8 NHWC images, or vectors) or the parts of a CSR matrix (``data,
indices, indptr, shape``), ``y``, and optionally ``classes`` (names) and ``split`` (0 train, 1 test,
2 validation). A .mat file is SVHN's (``X`` of 32 x 32 x 3 x N, ``y`` from 1 to 10,
where 10 is the digit 0), or has ``fts`` (N, D) and ``labels`` from 1 on, as the features of
Office-Caltech10 are published.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.sources.images import resize_all
from fedshift.data.sources.limits import Limits, refuse_above
from fedshift.data.sources.source import Array, Read, assemble

MOST_CLASSES = 100_000  # a larger label is a mistake, and would take all memory in names
FEW, FEW_ROWS = 0.2, 10  # share and number of rows up to which unusable ones are left out
ENTRIES = ("x", "data", "indices", "indptr", "shape", "y", "split")
BROKEN = (
    OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, SyntaxError,
    tokenize.TokenError, ArithmeticError,
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """The rows of one domain as read, before classes are chosen and images resized."""

    x: Array  # (N, H, W, C) uint8 images, or (N, D) vectors
    labels: Array  # (N,) names of classes
    split: Array | None = None  # (N,) uint8: 0 train, 1 val, 2 test
    ids: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    drawn: bool = False  # the split does not come with the data


@dataclass(frozen=True)
class ArraySource:
    """A domain whose rows are one array; ``load`` reads it when it is needed."""

    name: str
    classes: tuple[str, ...]
    load: Callable[[], Rows]
    limits: Limits = field(default_factory=Limits)

    def read(self, classes: Sequence[str], size: int | None) -> Read:
        """The rows of the given classes, labelled by their order."""
        rows = self.load()
        order = {name: i for i, name in enumerate(classes)}
        y = np.array([order.get(str(name), -1) for name in rows.labels.tolist()], dtype=np.int64)
        kept = np.flatnonzero(y >= 0)
        x = rows.x if len(kept) == len(y) else rows.x[kept]
        if x.ndim == 4:
            x = resize_all(x, size, self.limits)
        ids = rows.ids or tuple(str(i) for i in range(len(y)))
        split = None if rows.split is None else rows.split[kept]
        domain = assemble(self.name, x, y[kept], split, classes)
        domain = replace(domain, drawn=rows.drawn or domain.drawn)
        return Read(domain, tuple(ids[i] for i in kept), rows.left_out)


def npz_source(path: Path, name: str, alias: Callable[[str], str] = str) -> ArraySource:
    """A domain from an npz file; nothing is unpickled, other entries are ignored."""
    entries = open_npz(path, ("y", "classes"))
    if "y" not in entries:
        raise DataError(f"{path} has no entry y; an npz of a domain has x, y and classes")
    if entries["y"].ndim != 1 or entries["y"].dtype.kind not in "iu":
        found = f"{entries['y'].dtype} of {entries['y'].shape}"
        raise DataError(f"{path}: y is {found}; expected one whole number per row, from 0 on")
    classes = _class_names(entries, alias, path)
    return ArraySource(name, classes, lambda: _npz_rows(path, classes))


def open_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Entries of an npz file, all or those in ``names``; pickled ones are refused."""
    try:
        _refuse_bomb(path)
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {n: file[n] for n in (names or file.files) if n in file.files}
            return {n: _whole(n, array) for n, array in found.items()}
    except (*BROKEN, AttributeError, TypeError, MemoryError) as error:
        raise DataError(f"{path} cannot be read ({error}); make or fetch it again") from None


def _whole(name: str, array: Any) -> Array:
    """An entry that is an array, and whose texts are texts; numpy hands out others as well."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"entry {name} is no array")
    if array.dtype.itemsize == 0 and array.size:  # any number of them fits into no bytes
        raise ValueError(f"entry {name} has {array.size} items of no bytes")
    if array.dtype.kind == "U":
        codes = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        if array.dtype.byteorder == ">":
            codes = codes.byteswap()
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise ValueError(f"entry {name} holds characters that do not exist")
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # torch reads no other order


def _refuse_bomb(path: Path) -> None:
    """Raise if a small file says that it holds far more than the limit of a preparation."""
    with zipfile.ZipFile(path) as file:
        size = sum(entry.file_size for entry in file.infolist())
    most = Limits().gigabytes
    if size > most * 1e9 and size > 100 * path.stat().st_size:
        raise DataError(
            f"{path} has {path.stat().st_size / 1e6:.1f} MB and would take {size / 1e9:,.0f} GB, "
            f"more than {most:g}; check where it comes from, or save it uncompressed"
        )


def _numbered(top: int, alias: Callable[[str], str], path: Path) -> tuple[str, ...]:
    """Names of classes that are numbers from 0 to ``top``."""
    if top >= MOST_CLASSES:
        raise DataError(f"{path}: y holds the label {top}; labels count from 0: number them anew")
    return tuple(alias(str(i)) for i in range(top + 1))


def _class_names(
    entries: Mapping[str, Array], alias: Callable[[str], str], path: Path
) -> tuple[str, ...]:
    if "classes" in entries:
        return tuple(alias(str(name)) for name in entries["classes"])
    y = entries["y"]
    return _numbered(int(y.max()) if len(y) else -1, alias, path)


def _npz_rows(path: Path, classes: tuple[str, ...]) -> Rows:
    entries = open_npz(path, ENTRIES)
    x, y = dense(entries, path), entries["y"].astype(np.int64)
    split = _marks(entries["split"], path) if "split" in entries else np.zeros(len(y), np.uint8)
    if not len(x) == len(y) == len(split):
        raise DataError(
            f"{path}: x has {len(x)} rows, y {len(y)} and split {len(split)}; they must agree"
        )
    if 0 in x.shape[1:]:
        raise DataError(f"{path}: x has shape {x.shape}, rows without a number; expected some")
    named = (y >= 0) & (y < len(classes))
    finite = np.isfinite(x).all(axis=1) if x.ndim == 2 else np.ones(len(x), dtype=bool)
    span = f"{len(classes)} classes are 0 to {len(classes) - 1}"
    left_out = [
        f"{path}, row {i}: label {y[i]} is out of range; {span}; mend y or add to classes"
        for i in np.flatnonzero(~named)
    ]
    left_out += [
        f"{path}, row {i}: x holds nan or inf; mend or remove the row"
        for i in np.flatnonzero(named & ~finite)
    ]
    if len(left_out) > max(FEW_ROWS, FEW * len(y)):
        raise DataError(
            f"{left_out[0]}; {len(left_out)} of {len(y)} rows are like that, and more than "
            f"{FEW:.0%} are not left out silently"
        )
    good = np.flatnonzero(named & finite)
    labels = np.array(classes, dtype=np.str_)[y[good]]
    return Rows(x[good], labels, split[good], tuple(map(str, good)), tuple(left_out))


def _marks(split: Array, path: Path) -> Array:
    """Our split codes (0 train, 1 val, 2 test) from the file's (0 train, 1 test, 2 validation)."""
    if split.ndim != 1 or split.dtype.kind not in "iub" or not np.isin(split, (0, 1, 2)).all():
        odd = (repr(s) for s in split.ravel().tolist() if s not in (0, 1, 2))
        found = next(odd, f"{split.dtype} of {split.shape}")
        raise DataError(f"{path}: split holds {found}; it takes 0 train, 1 test, 2 validation")
    return np.array([0, 2, 1], dtype=np.uint8)[split.astype(np.int64)]


def dense(entries: Mapping[str, Array], path: Path) -> Array:
    """Inputs as images of three channels or as vectors, from a dense or a CSR array."""
    if "x" in entries:
        x = entries["x"][..., None] if entries["x"].ndim == 3 else entries["x"]
        if x.ndim == 4 and x.dtype == np.uint8 and x.shape[3] in (1, 3):
            return np.repeat(x, 3, axis=3) if x.shape[3] == 1 else x
        if x.ndim == 2 and x.dtype.kind in "fiub":
            return x
        raise DataError(
            f"{path}: x is {x.dtype} of {x.shape}; expected uint8 images of (N, H, W, 3), or "
            "numbers of (N, D)"
        )
    if not {"data", "indices", "indptr", "shape"} <= set(entries):
        found = ", ".join(entries)
        raise DataError(f"{path} has {found}; expected x, or data, indices, indptr and shape")
    from scipy.sparse import csr_matrix  # noqa: PLC0415  slow to import

    try:
        parts = (entries["data"], entries["indices"].astype(np.int32), entries["indptr"])
        matrix = csr_matrix(parts, shape=tuple(entries["shape"].tolist()))
        matrix.check_format(full_check=True)  # an index outside would be written to any memory
        size = math.prod(matrix.shape) * matrix.dtype.itemsize
        refuse_above(size / 1e9, f"{path} as a dense array", Limits())
        return np.asarray(matrix.toarray())
    except (ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        raise DataError(f"{path} is no CSR matrix ({error}); make it again") from None


def mat_source(
    paths: Sequence[Path], name: str, classes: Sequence[str], alias: Callable[[str], str] = str
) -> ArraySource:
    """A domain from MATLAB files; a file with ``test`` in its name holds the test rows."""
    parts = [_mat_rows(path) for path in paths]
    sizes = [len(y) for _, y in parts]
    x, numbers = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    names = tuple(classes) or _numbered(int(numbers.max(initial=-1)), alias, paths[0])
    good = (numbers >= 0) & (numbers < len(names))
    ids = [f"{p.stem}/{i}" for p, n in zip(paths, sizes, strict=True) for i in range(n)]
    left_out = tuple(
        f"{paths[0].parent}, {ids[i]}: label is out of range of {len(names)} classes; mend it"
        for i in np.flatnonzero(~good)
    )
    marks = [2 if "test" in path.stem.lower() else 0 for path in paths]
    split = np.repeat(np.array(marks, dtype=np.uint8), sizes)[good]
    kept = tuple(ids[i] for i in np.flatnonzero(good))
    rows = Rows(x[good], np.array(names)[numbers[good]], split, kept, left_out)
    return ArraySource(name, names, lambda: rows)


def _mat_rows(path: Path) -> tuple[Array, Array]:
    """Inputs and labels, counted from 0."""
    from scipy.io import loadmat  # noqa: PLC0415  slow to import

    try:
        file = loadmat(path)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise DataError(f"{path} cannot be read ({error}); save it in MATLAB format 5") from None
    if {"X", "y"} <= set(file):
        y = file["y"].ravel().astype(np.int64)
        return file["X"].transpose(3, 0, 1, 2), np.where(y == 10, 0, y)
    if {"fts", "labels"} <= set(file):
        return file["fts"].astype(np.float32), file["labels"].ravel().astype(np.int64) - 1
    found = ", ".join(key for key in file if not key.startswith("__"))
    raise DataError(f"{path} has {found}; expected X and y (SVHN), or fts and labels (features)")
