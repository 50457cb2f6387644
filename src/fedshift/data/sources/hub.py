"""Datasets of the Hugging Face hub, or the same parquet files in a local folder (extra ``hub``).

``discover`` calls it for a hub id or a folder of parquet files. The library ``datasets`` is
imported only when needed, and only a source that the user names is ever downloaded.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fedshift.base.errors import DataError
from fedshift.data.catalogue import Hub
from fedshift.data.sources.images import SPLITS, ImageSource, Item


def load_hub(
    where: str | Path,
    *,
    image: str = "image",
    label: str = "label",
    domain: str | None = "domain",
    name: str = "",
    config: str | None = None,
) -> list[ImageSource]:
    """The domains of a hub id, or of a folder of parquet files with the same columns.

    ``name`` is the only domain's, where there is no domain column. Images are decoded later, by
    :meth:`ImageSource.read`.
    """
    tables = _open(where, config)
    found: dict[str, list[Item]] = {}
    left_out: list[str] = []
    for split, table in tables.items():
        wanted = [image, label, *([domain] if domain and not name else [])]
        _check_columns(where, table.column_names, wanted)
        mark = SPLITS.get(split.split("-")[0], -1) if len(tables) > 1 else -1
        domains = _names(table, domain) if domain and not name else None
        for i, kind in enumerate(_names(table, label)):
            if kind is None:
                left_out.append(f"{where}, {split}/{i}: label is out of range or missing; mend it")
                continue
            of = str(domains[i]) if domains else name
            item = Item(f"{split}/{i}", kind, mark, partial(_bytes, table, image, i))
            found.setdefault(of, []).append(item)
    return [
        ImageSource(one, tuple(items), tuple(left_out) if not n else ())
        for n, (one, items) in enumerate(sorted(found.items()))
    ]


def library() -> Any:
    """The optional library ``datasets``, or an error that says how to install it."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise DataError(
            "the library `datasets` is missing; install it with: pip install 'fedshift[hub]'"
        ) from None


def _open(where: str | Path, config: str | None) -> dict[str, Any]:
    """Tables by the name of their split."""
    datasets = library()
    try:
        if isinstance(where, Path):
            return _open_folder(where)
        return dict(datasets.load_dataset(where, config))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"cannot load {where}: {reason}; check the id, the network and HF_HUB_OFFLINE, or "
            "download the parquet files and give their folder as the source",
            "from=DIR",
        ) from None


def _open_folder(folder: Path) -> dict[str, Any]:
    datasets = library()
    files: dict[str, list[str]] = {}
    for path in parquet_files(folder):
        mark = path.stem.split("-")[0].lower()
        files.setdefault(mark if mark in SPLITS else "train", []).append(str(path))
    if not files:
        raise DataError(f"{folder} has no .parquet files; give a folder of a hub download")
    cache = tempfile.mkdtemp(prefix="fedshift-hub-")
    quiet = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        tables = dict(datasets.load_dataset("parquet", data_files=files, cache_dir=cache))
    except BaseException:
        shutil.rmtree(cache, ignore_errors=True)
        raise
    finally:
        if quiet:
            datasets.enable_progress_bars()
    for table in tables.values():  # delete the copy when no table maps it any more
        weakref.finalize(table, shutil.rmtree, cache, ignore_errors=True)
    return tables


def parquet_files(folder: Path) -> list[Path]:
    """Parquet files of a folder and of its direct subfolders."""
    found = [*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]
    return sorted(p for p in found if p.is_file())


def _check_columns(where: str | Path, found: list[str], wanted: list[str]) -> None:
    for column in wanted:
        if column not in found:
            raise DataError(
                f"{where} has no column {column!r}; it has {', '.join(found)}; "
                "name the columns for image, label and domain"
            )


def _names(table: Any, column: str) -> list[str | None]:
    """Values of a column as text: class names if the column has them; None where out of range."""
    names = getattr(table.features[column], "names", None)
    values = table.data.column(column).to_pylist()
    if names is None:
        return [None if v is None else str(v) for v in values]
    return [names[v] if v is not None and 0 <= v < len(names) else None for v in values]


def _bytes(table: Any, column: str, row: int) -> bytes:
    """The encoded image of a row, read from the table on disk; safe in several threads."""
    value = table.data.column(column)[row].as_py()
    if isinstance(value, dict):
        value = value.get("bytes") or Path(value.get("path") or "").read_bytes()
    if not isinstance(value, bytes):
        raise OSError(f"column {column!r} holds {type(value).__name__}, not an image")
    return value


def by_card(columns: Iterable[tuple[str | Path, Hub]]) -> list[ImageSource]:
    """The domains of several hub ids or folders, each with its columns."""
    found: list[ImageSource] = []
    for where, hub in columns:
        found += load_hub(
            where,
            image=hub.image,
            label=hub.label,
            domain=hub.domain,
            name=hub.name,
            config=hub.config,
        )
    return found
