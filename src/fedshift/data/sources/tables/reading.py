"""Opens csv, parquet and Excel files as columns of numbers or texts.

``federated`` calls :func:`read_table`. Delimiter, decimal comma and encoding are found unless the
schema names them. A column is a float array, nan where a cell is missing, or an array of texts,
None where one is missing. A csv is read in blocks (``cells``), so that only one block is held as
text; nothing is filled in here.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import re
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift.base.errors import DataError
from fedshift.data.sources.tables.cells import CellBlock, PlainCells, blocks_of, header_of
from fedshift.data.sources.tables.schema import TableSchema

Array = NDArray[Any]
DELIMITERS = (",", ";", "\t", "|")
EXCEL = (".xlsx", ".xlsm")
SUFFIXES = (".csv", ".tsv", ".parquet", *EXCEL)
CODE = re.compile("\x000[0-9]")  # 007 is a code, not the number 7
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # row numbers that it adds to parquet files
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
MARKS = (  # of an encoding, at the start of a file
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A file as columns, and the line that each row comes from."""

    path: Path
    columns: dict[str, Array]  # by name: (N,) float64, or (N,) objects: texts or None
    lines: Array  # (N,) line or row numbers in the file

    def __len__(self) -> int:
        return len(self.lines)


def read_table(path: Path, schema: TableSchema, texts: Sequence[str] = ()) -> Table:
    """The columns of a file; those in ``texts`` are never turned into numbers."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        table = _read_parquet(path, schema)
    elif suffix in EXCEL:
        table = _read_excel(path, schema)
    else:
        table = _read_csv(path, schema, frozenset(texts))
    if not len(table):
        raise DataError(f"{path} has no rows; expected a header line and rows")
    return table


def as_texts(column: Array) -> Array:
    """A column as texts; whole numbers without a decimal point, None where one is missing."""
    if column.dtype == object:
        return column
    values, at = np.unique(column, return_inverse=True)
    names = [None if np.isnan(v) else number_text(v) for v in values]
    return np.array([*names, None], dtype=object)[at]  # None: the array is of objects in any case


def number_text(value: float) -> str:
    """A number as a person writes it.

    >>> number_text(3.0), number_text(0.5)
    ('3', '0.5')
    """
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def parse_numbers(cells: Sequence[str], absent: frozenset[str], decimal: str = ".") -> Array | None:
    """Cells as numbers, nan where one is missing; None if a cell is something else, or a code.

    >>> parse_numbers(["1", "?", "2.5"], frozenset(["?"])).tolist()
    [1.0, nan, 2.5]
    """
    return None if is_code(cells) else numbers_of(cells, absent, decimal)


def numbers_of(cells: Sequence[str], absent: frozenset[str], decimal: str = ".") -> Array | None:
    """As :func:`parse_numbers`, and a code such as 007 is the number 7."""
    plain = absent | {cell.upper() for cell in absent}  # most files: no need to look closer
    ways = (
        lambda: cells,
        lambda: ["nan" if c in plain else c for c in cells],
        lambda: ["nan" if c.strip().lower() in absent else _plain(c, decimal) for c in cells],
    )
    for way in ways:
        with suppress(ValueError):
            out = np.fromiter(map(float, way()), np.float64, len(cells))
            out[~np.isfinite(out)] = np.nan
            return out
    return None


def is_code(cells: Sequence[str]) -> bool:
    """Whether a cell looks like a number and is none: 007, or 1_000, which Python accepts."""
    joined = "\0" + "\0".join(cells)
    return "_" in joined or CODE.search(joined) is not None


def _plain(cell: str, decimal: str) -> str:
    """A number without a decimal comma and without marks of thousands."""
    if "," not in cell:
        return cell
    if decimal == ",":
        return cell.replace(".", "").replace(",", ".")
    cell = cell.strip()
    return cell.replace(",", "") if THOUSANDS.fullmatch(cell) else cell


def texts_of(
    distinct: Sequence[str], at: Array, absent: frozenset[str], decimal: str = "."
) -> Array:
    """Texts, None where one is missing, from the different cells and which of them each cell is.

    Among texts a number is written with a point, whatever the file has: one cell that is none
    must not hide the others from those who look for numbers.
    """
    known = [
        None if c.strip().lower() in absent else _with_point(c.strip(), decimal) for c in distinct
    ]
    return np.array([*known, None], dtype=object)[at]  # None: an array of objects in any case


def _with_point(cell: str, decimal: str) -> str:
    plain = _plain(cell, decimal)
    return plain if plain != cell and decimal == "," and NUMBER.fullmatch(plain) else cell


def one_by_one(
    name: str, found: tuple[Sequence[str], Array], schema: TableSchema, decimal: str
) -> Array:
    """A column of which each cell is read by itself: a number if it has bounds, else a text.

    ``found`` are the different cells, and which of them each cell is. A cell that is no number
    counts as missing.
    """
    distinct, at = found
    numbers = [numbers_of([_with_point(c.strip(), decimal)], schema.absent) for c in distinct]
    values = np.array([np.nan if n is None else n[0] for n in numbers] + [np.nan])
    gone = np.isnan(_without(values, schema)) & ~np.isnan(values)  # such as -9.0 where -9 is told
    if name in schema.bounds and name not in schema.date:
        return np.where(gone, np.nan, values)[at]
    cells = ["" if lost else cell for cell, lost in zip(distinct, gone[:-1], strict=True)]
    return texts_of(cells, at, schema.absent, decimal)


def parse_texts(cells: Sequence[str], absent: frozenset[str]) -> Array:
    """Cells as texts, None where one is missing."""
    return texts_of(*PlainCells(cells).distinct(), absent)


def encoding_of(path: Path) -> str:
    """By its first bytes, or the first of UTF-8, Windows and Latin-1 that fits the whole file."""
    with path.open("rb") as file:
        head = file.read(400)
        for mark, name in MARKS:
            if head.startswith(mark):
                return name
        if b"\0" in head:  # UTF-16 without a mark: every other byte of plain text is zero
            return "utf-16-be" if head[::2].count(0) > head[1::2].count(0) else "utf-16-le"
        for name in ("utf-8", "cp1252"):
            file.seek(0)
            decoder = codecs.getincrementaldecoder(name)()
            try:
                while block := file.read(2**20):
                    decoder.decode(block)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError:
                continue
            return name
    return "latin-1"


def delimiter_of(sample: str) -> str:
    r"""The delimiter by which most lines have as many cells as the header.

    >>> delimiter_of("a;b\n1,5;2\n")
    ';'
    """
    lines, best = sample.splitlines()[:50], (0.0, 0, ",")
    for mark in DELIMITERS:
        widths = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
        if widths and widths[0] > 1:
            same = sum(w == widths[0] for w in widths) / len(widths)
            best = max(best, (same, widths[0], mark))
    return best[2]


@dataclass
class _Blocks:
    """Columns that grow block by block; a column that fails as numbers late is read again."""

    decimal: str
    schema: TableSchema
    texts: set[str]  # columns that are texts
    parts: dict[str, list[Array]] = field(default_factory=dict)
    lines: list[Array] = field(default_factory=list)
    late: set[str] = field(default_factory=set)

    def add(self, header: Sequence[str], block: CellBlock) -> None:
        """Append a block of lines in place."""
        self.lines.append(block.lines)
        for name, cells in zip(header, block.columns, strict=True):
            parts = self.parts.setdefault(name, [])
            if self.schema.by_cell(name):
                parts.append(one_by_one(name, cells.distinct(), self.schema, self.decimal))
                continue
            if name not in self.texts:
                numbers = cells.numbers(self.schema.absent)
                if numbers is None:
                    numbers = parse_numbers(cells.texts(), self.schema.absent, self.decimal)
                if numbers is not None:
                    parts.append(numbers)
                    continue
                self.texts.add(name)
                if any(not np.isnan(part).all() for part in parts):
                    self.late.add(name)
            decimal = "." if name in self.schema.label else self.decimal  # 1,2 may be two labels
            parts.append(texts_of(*cells.distinct(), self.schema.absent, decimal))

    def table(self, path: Path) -> Table:
        """Whole columns."""
        out = {}
        for name, parts in self.parts.items():
            mixed = name in self.texts and any(part.dtype != object for part in parts)
            whole = np.concatenate([as_texts(p) for p in parts] if mixed else parts)
            out[name] = _without(whole, self.schema)
        lines = np.concatenate(self.lines) if self.lines else np.empty(0, np.int64)
        return Table(path, out, lines)


def _read_csv(path: Path, schema: TableSchema, texts: frozenset[str]) -> Table:
    try:
        noisy = schema.epsilon is not None  # then no row may change how others are read
        encoding = schema.encoding or ("utf-8-sig" if noisy else encoding_of(path))
        with path.open(newline="", encoding=encoding) as file:
            sample = file.readline() if noisy else file.read(2**16)
            delimiter = schema.delimiter or delimiter_of(sample)
        told = schema.decimal or ("." if delimiter == "," else ",")
        blocks = _filled(path, (encoding, delimiter), _Blocks(told, schema, set(texts)))
        if blocks.late:  # numbers in the first blocks, texts later: their spelling matters
            again = _Blocks(told, schema, blocks.texts)
            blocks = _filled(path, (encoding, delimiter), again)
    except (OSError, UnicodeError, LookupError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); save it as UTF-8 csv") from None
    return blocks.table(path)


def _filled(path: Path, how: tuple[str, str], blocks: _Blocks) -> _Blocks:
    """Read a csv into ``blocks``, in place."""
    header = header_of(path, *how)
    check_header(path, header)
    for block in blocks_of(path, *how, len(header)):
        blocks.add(header, block)
    return blocks


def check_header(path: Path, header: Sequence[str]) -> None:
    """Raise if a table's first line is no header, or names a column twice."""
    if not any(header):
        raise DataError(f"{path} is empty; expected a header line and rows")
    if len(set(header)) < len(header):
        raise DataError(f"{path} has a column twice among {', '.join(header)}; rename one")
    if len(header) > 1 and parse_numbers(list(header), frozenset(("", "?"))) is not None:
        found = ", ".join(header[:5])
        raise DataError(f"{path} starts with {found}: no header; add a line of column names")


def _without(column: Array, schema: TableSchema) -> Array:
    """Cells that equal a number of ``schema.missing`` become missing."""
    if column.dtype == object or not schema.missing:
        return column
    told = parse_numbers(list(schema.missing), schema.absent - set(schema.missing))
    return column if told is None else np.where(np.isin(column, told), np.nan, column)


def _read_parquet(path: Path, schema: TableSchema) -> Table:
    try:
        table = arrow("parquet").read_table(path)
    except (OSError, arrow("lib").ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read ({reason}); write it again") from None
    table = table.drop_columns([n for n in table.column_names if PANDAS_INDEX.fullmatch(n)])
    names = [name.strip() for name in table.column_names]
    columns = {}
    for name, column in zip(names, table.columns, strict=True):
        kind = str(column.type)
        if kind.startswith(("int", "uint", "float", "double", "halffloat")):
            numbers = column.to_numpy().astype(np.float64)
            columns[name] = _without(np.where(np.isfinite(numbers), numbers, np.nan), schema)
        else:
            columns[name] = _of_values(name, column.to_pylist(), schema)
    check_header(path, names)
    return Table(path, columns, np.arange(table.num_rows))


def arrow(module: str) -> Any:
    """A module of pyarrow, which comes with the extra ``tables``."""
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError:
        hint = "pip install 'fedshift[tables]', or use csv"
        raise DataError(f"parquet needs pyarrow; {hint}") from None


def _read_excel(path: Path, schema: TableSchema) -> Table:
    try:
        openpyxl = importlib.import_module("openpyxl")
    except ImportError:
        hint = "pip install 'fedshift[tables]', or save it as csv"
        raise DataError(f"{path} needs openpyxl; {hint}") from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheet = [list(row) for row in book.worksheets[0].iter_rows(values_only=True)]
        book.close()
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({error}); save it again as xlsx") from None
    rows = [(n, row) for n, row in enumerate(sheet, start=1) if any(v is not None for v in row)]
    header = ["" if v is None else str(v).strip() for v in rows[0][1]] if rows else []
    while header and not header[-1]:
        header.pop()  # Excel keeps empty columns at the end
    check_header(path, header)
    columns = {
        name: _of_values(name, [row[i] if i < len(row) else None for _, row in rows[1:]], schema)
        for i, name in enumerate(header)
    }
    return Table(path, columns, np.array([n for n, _ in rows[1:]], dtype=np.int64))


def _of_values(name: str, values: Sequence[Any], schema: TableSchema) -> Array:
    if not schema.by_cell(name):
        return from_values(values, schema)
    found = PlainCells(["" if v is None else _text(v) for v in values]).distinct()
    return one_by_one(name, found, schema, schema.decimal or ".")


def from_values(values: Sequence[Any], schema: TableSchema) -> Array:
    """A column from Python values; numbers if all of them are, else texts."""
    cells = ["" if v is None else _text(v) for v in values]
    numbers = parse_numbers(cells, schema.absent, schema.decimal or ".")
    return parse_texts(cells, schema.absent) if numbers is None else _without(numbers, schema)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return "" if not np.isfinite(value) else number_text(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
