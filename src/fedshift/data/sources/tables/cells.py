"""The cells of a csv, column by column and block by block: through pyarrow, or Python's csv module.

``reading`` asks :func:`blocks_of` for them and turns each column into numbers or texts. pyarrow (of
the extra ``tables``) is several times as fast and is used where it cannot differ: for plain UTF-8
without quotes and empty lines. Whatever it does not take as it is (a line of another length, a
number in another spelling) goes the slow way, so that the outcome never depends on what is
installed.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedshift.base.errors import DataError

Array = NDArray[Any]
BLOCK = 16384  # lines
BYTES = 4 * 2**20  # of a block that pyarrow reads


class Cells(Protocol):
    """A block of one column."""

    def texts(self) -> Sequence[str]:
        """The cells as the file has them."""

    def numbers(self, absent: frozenset[str]) -> Array | None:
        """Numbers, nan where a cell is missing; None if a closer look at the texts is needed."""

    def distinct(self) -> tuple[list[str], Array]:
        """The different cells, and which of them each cell is."""


@dataclass(frozen=True)
class PlainCells:
    """Cells of Python's csv module."""

    cells: Sequence[str]

    def texts(self) -> Sequence[str]:
        """See :class:`Cells`."""
        return self.cells

    def numbers(self, absent: frozenset[str]) -> None:
        """Always the close look."""

    def distinct(self) -> tuple[list[str], Array]:
        """See :class:`Cells`."""
        known: dict[str, int] = {}
        at = [known.setdefault(cell, len(known)) for cell in self.cells]
        return list(known), np.array(at, dtype=np.int64)


@dataclass(frozen=True)
class ArrowCells:
    """Cells of pyarrow: an array of strings."""

    cells: Any

    def texts(self) -> Sequence[str]:
        """See :class:`Cells`."""
        found: list[str] = self.cells.to_pylist()
        return found

    def numbers(self, absent: frozenset[str]) -> Array | None:
        """As many as pyarrow reads, which rounds as Python does; None if a cell may be a code."""
        compute, arrow = _arrow("compute"), _arrow("lib")
        leading = self.cells.filter(compute.starts_with(self.cells, "0"))
        if compute.any(compute.match_substring_regex(leading, "^0[0-9]")).as_py():
            return None
        plain = sorted(absent | {cell.upper() for cell in absent})
        for clean in (False, True):
            cells = self.cells
            if clean:
                lacks = compute.is_in(cells, value_set=arrow.array(plain, arrow.string()))
                cells = compute.if_else(lacks, arrow.scalar(None, arrow.string()), cells)
            try:
                found = cells.cast(arrow.float64()).to_numpy(zero_copy_only=False)
            except arrow.ArrowInvalid:
                continue
            return np.where(np.isfinite(found), found, np.nan)
        return None

    def distinct(self) -> tuple[list[str], Array]:
        """See :class:`Cells`."""
        coded = self.cells.dictionary_encode()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy()


@dataclass(frozen=True)
class CellBlock:
    """Some lines of a csv: their cells by column, and the number of each line."""

    columns: Sequence[Cells]
    lines: Array


def header_of(path: Path, encoding: str, delimiter: str) -> list[str]:
    """The names in the first line."""
    with path.open(newline="", encoding=encoding) as file:
        return [name.strip() for name in next(csv.reader(file, delimiter=delimiter), [])]


def blocks_of(path: Path, encoding: str, delimiter: str, width: int) -> Iterator[CellBlock]:
    """All lines after the header, each of ``width`` cells; missing ones at the end are empty."""
    left: int | None = 0
    if encoding.startswith("utf-8") and has_arrow() and is_plain(path):
        left = yield from _arrow_blocks(path, delimiter, width)
    if left is not None:
        yield from _csv_blocks(path, encoding, delimiter, width, left)


def _arrow_blocks(path: Path, delimiter: str, width: int) -> Generator[CellBlock, None, int | None]:
    """Blocks up to the first that pyarrow refuses; returns how many lines it read, None if all."""
    reader, names, done = _arrow("csv"), [str(i) for i in range(width)], 0
    string = _arrow("lib").string()
    try:
        opened = reader.open_csv(
            path,
            reader.ReadOptions(column_names=names, skip_rows=1, block_size=BYTES),
            reader.ParseOptions(delimiter=delimiter, quote_char=False),
            reader.ConvertOptions(column_types=dict.fromkeys(names, string)),
        )
        for batch in opened:
            first, done = done, done + batch.num_rows
            columns = [ArrowCells(column) for column in batch.columns]
            yield CellBlock(columns, np.arange(first, done, dtype=np.int64) + 2)
    except _arrow("lib").ArrowInvalid:
        return done
    return None


def _csv_blocks(
    path: Path, encoding: str, delimiter: str, width: int, skip: int
) -> Iterator[CellBlock]:
    with path.open(newline="", encoding=encoding) as file:
        reader = csv.reader(file, delimiter=delimiter)
        next(reader, None)
        for _ in range(skip):  # plain lines, which another reader has taken
            next(reader)
        rows: list[list[str]] = []
        lines: list[int] = []
        for row in reader:
            if row:
                rows.append(row if len(row) == width else _filled(path, reader, row, width))
                lines.append(reader.line_num)
            if len(rows) == BLOCK:
                yield _block(rows, lines)
                rows, lines = [], []
        if rows:
            yield _block(rows, lines)


def _block(rows: list[list[str]], lines: list[int]) -> CellBlock:
    columns = [PlainCells(cells) for cells in zip(*rows, strict=True)]
    return CellBlock(columns, np.array(lines, dtype=np.int64))


def _filled(path: Path, reader: Any, row: list[str], width: int) -> list[str]:
    """A line of another length: empty cells at its end may be missing or too many."""
    if any(row[width:]):
        mend = "mend the line" if width > 1 else "delete lines above the column names"
        raise DataError(
            f"{path}:{reader.line_num} has {len(row)} cells, the header {width}; {mend}, or name "
            "the delimiter in a schema file"
        )
    return [*row, *[""] * (width - len(row))][:width]


def is_plain(path: Path) -> bool:
    """Whether a file has no quotes, no empty lines, and lines that end alike."""
    with path.open("rb") as file:
        before = b""
        while block := file.read(2**20):
            if block.endswith(b"\r"):
                block += file.read(1)
            seam = before + block
            if b'"' in block or b"\0" in block or b"\n\n" in seam or b"\n\r\n" in seam:
                return False
            if block.count(b"\r") != block.count(b"\r\n"):
                return False
            before = block[-2:]
    return True


def has_arrow() -> bool:
    """Whether pyarrow, of the extra ``tables``, is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def _arrow(module: str) -> Any:
    return importlib.import_module(f"pyarrow.{module}")
