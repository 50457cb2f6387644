"""Your own vectors: csv, parquet or npz with labels, and texts through your own encoder.

``discover`` calls it. Columns named ``domain``, ``split`` (train, val, test) and ``id`` are
optional; all others hold numbers. Without a domain column each file is a domain. A line that cannot
be used is left out and reported with its place, and nothing is ever guessed or filled in.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.sources.arrays import ArraySource, Rows, npz_source, open_npz
from fedshift.data.sources.images import SPLITS

EXTRA = ("split", "id")
Line = tuple[str, dict[str, Any]]  # file and line, for messages; values by column


@dataclass
class VectorTable:
    """The usable lines of all files, column by column, and what was left out."""

    x: list[Any] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def sources(self) -> list[ArraySource]:
        """One source per domain."""
        x, labels = np.array(self.x, dtype=np.float32), np.array(self.labels)
        domains, marks = np.array(self.domains), np.array(self.marks)
        out: list[ArraySource] = []
        for name in sorted(set(self.domains)):
            rows = np.flatnonzero(domains == name)
            split = marks[rows] if (marks[rows] >= 0).all() else None
            left_out = tuple(self.left_out) if not out else ()
            kept = Rows(x[rows], labels[rows], split, tuple(self.ids[i] for i in rows), left_out)
            out.append(ArraySource(name, in_order(labels[rows]), partial(_same, kept)))
        return out


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Distinct class names, sorted; by value if all of them are whole numbers.

    >>> in_order(["10", "9", "9"])
    ('9', '10')
    """
    names = {str(name) for name in labels}
    number = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=int if number else str))


def table_sources(
    paths: Sequence[Path], *, label: str = "label", domain: str = "domain"
) -> list[ArraySource]:
    """The domains of csv or parquet files whose inputs are columns of numbers."""
    table, first = VectorTable(), [""]
    for path in paths:
        header, lines = read_lines(path)
        numbers = _number_columns(path, header, label=label, domain=domain)
        first = numbers if path == paths[0] else first
        if sorted(numbers) != sorted(first):
            found = f"{path} has the columns {', '.join(numbers)}; {paths[0].name} has "
            raise DataError(found + f"{', '.join(first)}; all files need the same")
        for where, values in lines:
            _add(table, where, values, (first, label, domain, path.stem))
    if not table.x:
        reason = table.left_out[0] if table.left_out else f"{paths[0]} has no rows"
        raise DataError(f"no row can be used; {reason}")
    return table.sources()


def _number_columns(path: Path, header: Sequence[str], *, label: str, domain: str) -> list[str]:
    if label not in header:
        raise DataError(
            f"{path} has no column {label!r}; it has {', '.join(header)}; name the label column",
            "label=COLUMN",
        )
    if len(set(header)) < len(header):
        raise DataError(f"{path} has a column twice among {', '.join(header)}; rename one")
    numbers = [name for name in header if name not in (label, domain, *EXTRA)]
    if not numbers:
        raise DataError(f"{path} has no columns besides {', '.join(header)}; add the inputs")
    return numbers


def _add(
    table: VectorTable, where: str, values: dict[str, Any], names: tuple[list[str], str, str, str]
) -> None:
    """Add one line to the table in place, or a reason to what was left out."""
    numbers, label, domain, stem = names
    row = []
    for name in numbers:
        value = number(values.get(name))
        if value is None:
            text = f"column {name!r} holds {values.get(name)!r}, not a number"
            table.left_out.append(f"{where}: {text}; mend the line or drop the column")
            return
        row.append(value)
    if values.get(label) in (None, ""):
        table.left_out.append(f"{where}: column {label!r} is empty; give the line a label")
        return
    table.x.append(row)
    table.labels.append(str(values[label]))
    table.domains.append(str(values.get(domain) or stem))
    table.marks.append(SPLITS.get(str(values.get("split", "")).lower(), -1))
    table.ids.append(str(values.get("id", where)))


def number(value: Any) -> float | None:
    """The value as a finite number, or None if it is not one."""
    try:
        out = float(value)
    except (TypeError, ValueError):
        return None
    return out if np.isfinite(out) else None


def read_lines(path: Path) -> tuple[list[str], Iterable[Line]]:
    """Header and lines of a csv or parquet file."""
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); save it as UTF-8 csv") from None
    if not rows:
        raise DataError(f"{path} is empty; expected a header line and rows")
    header = [name.strip() for name in rows[0]]
    lines = ((f"{path}:{n}", row) for n, row in enumerate(rows[1:], start=2) if row)
    return header, [(where, dict(zip(header, row, strict=False))) for where, row in lines]


def _read_parquet(path: Path) -> tuple[list[str], Iterable[Line]]:
    try:
        table = arrow("parquet").read_table(path)
    except (OSError, arrow("lib").ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read ({reason}); write it again") from None
    lines = [(f"{path}, row {i}", values) for i, values in enumerate(table.to_pylist())]
    return list(table.column_names), lines


def arrow(module: str) -> Any:
    """A module of pyarrow, which comes with the extra ``hub``."""
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError:
        raise DataError("parquet needs pyarrow; pip install 'fedshift[hub]', or use csv") from None


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
        out.append(ArraySource(name, tuple(names) or in_order(labels), load))
    return out


def _texts(folder: Path) -> Iterable[Line]:
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.parquet")]):
        yield from read_lines(path)[1]
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
