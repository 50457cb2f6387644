"""Vectors of one npz with several domains, and texts through your own encoder.

``discover`` calls it. Tables are in ``sources.tables``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.sources.arrays import ArraySource, Rows, npz_source, open_npz
from fedshift.data.sources.tables.reading import as_texts, read_table
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.targets import in_order

Line = tuple[str, dict[str, Any]]  # file and line, for messages; values by column


def _same(rows: Rows) -> Rows:
    return rows


def npz_sources(path: Path) -> list[ArraySource]:
    """The domains of one npz file: by its entry ``domain``, one per row, else the whole file."""
    head = open_npz(path, ("domain",))
    whole = npz_source(path, path.stem)
    if "domain" not in head:
        return [whole]
    rows, domains = whole.load(), head["domain"]
    if len(domains) < len(rows.ids) + len(rows.left_out):
        raise DataError(f"{path}: domain has {len(domains)} rows, fewer than y; they must agree")
    names = [str(domains[int(i)]) for i in rows.ids]
    out: list[ArraySource] = []
    for name in sorted(set(names)):
        at = np.flatnonzero(np.array(names) == name)
        split = None if rows.split is None else rows.split[at]
        left_out = rows.left_out if not out else ()
        part = Rows(rows.x[at], rows.labels[at], split, tuple(rows.ids[i] for i in at), left_out)
        out.append(ArraySource(name, whole.classes, partial(_same, part)))
    return out


def text_sources(
    folder: Path, encoder: str, names: Sequence[str], alias: Callable[[str], str]
) -> list[ArraySource]:
    """Texts as vectors, through the function ``encode(texts)`` of your own Python file.

    The texts are ``domain/{negative,positive}.review`` (Blitzer's files), or csv or parquet files
    with the columns text, label and domain.
    """
    encode = _encoder(encoder)
    found: dict[str, list[tuple[str, str, str]]] = {}  # domain to (text, label, id)
    for where, values in _texts(folder):
        if not {"text", "label", "domain"} <= set(values):
            raise DataError(f"{where} has {', '.join(values)}; expected text, label and domain")
        row = (str(values["text"]), alias(str(values["label"])), where)
        found.setdefault(str(values["domain"]), []).append(row)
    if not found:
        raise DataError(f"{folder} has no texts; expected domain/positive.review or csv files")
    out = []
    for name, rows in sorted(found.items()):
        texts, labels, ids = zip(*rows, strict=True)
        load = partial(_encoded, encode, texts, labels, ids)
        out.append(ArraySource(name, tuple(names) or in_order(set(labels)), load))
    return out


def _texts(folder: Path) -> Iterable[Line]:
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.parquet")]):
        table = read_table(path, TableSchema())
        columns = {name: as_texts(column) for name, column in table.columns.items()}
        for i, line in enumerate(table.lines):
            yield f"{path}:{line}", {name: column[i] for name, column in columns.items()}
    for path in sorted(folder.glob("*/*.review")):
        if path.stem in ("positive", "negative"):
            bodies = path.read_text(encoding="latin-1")
            for i, text in enumerate(re.findall(r"<review_text>(.*?)</review_text>", bodies, re.S)):
                values = {"text": text.strip(), "label": path.stem, "domain": path.parent.name}
                yield f"{path}, review {i}", values


def _encoder(file: str) -> Callable[[list[str]], Any]:
    spec = importlib.util.spec_from_file_location("fedshift_encoder", file) if file else None
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise DataError(f"encoder is {file!r}; give a Python file that defines encode(texts)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "encode"):
        raise DataError(f"{file} defines no encode; it must take a list of texts, return vectors")
    encode: Callable[[list[str]], Any] = module.encode
    return encode


def _encoded(
    encode: Callable[[list[str]], Any],
    texts: Sequence[str],
    labels: Sequence[str],
    ids: tuple[str, ...],
) -> Rows:
    x = np.asarray(encode(list(texts)), dtype=np.float32)
    if x.ndim != 2 or len(x) != len(texts) or not np.isfinite(x).all():
        raise DataError(f"encode gave {x.shape} for {len(texts)} texts; expected finite (N, D)")
    return Rows(x, np.array(labels), None, ids)
