"""Finds what each column of a table is, from a short summary per site.

``federated`` calls it, and ``fedshift data inspect`` shows what it found. A summary holds counts
and, of a column with one single value, that value; whoever runs the sites together sees summaries
and nothing else. What the user says always comes first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedshift.base.errors import DataError, UnknownNameError
from fedshift.data.sources.tables.preparation import DATE
from fedshift.data.sources.tables.reading import (
    Array,
    as_texts,
    number_text,
    numbers_of,
    parse_numbers,
)
from fedshift.data.sources.tables.schema import MISSING, TableSchema

Role = Literal["numeric", "categorical", "date", "text", "id-like", "constant", "dropped"]
USED = ("numeric", "categorical", "date", "text")
ID_NAME = re.compile(r"(^|[\W_])(?i:id|ids|uuid|guid|mrn|ssn|identifier)$|[a-z](ID|Id)$", re.A)
INDEX_NAME = re.compile(r"(Unnamed: \d+)?")  # what pandas writes over its row numbers
SLASHES = re.compile(r"\d{1,2}/\d{1,2}/\d{2,4}([ T].*)?")
SIGNED = re.compile(r"([^\w\s.+-])? *[+-]?\d[\d.,]* *(\D{1,8})?")  # € 12, 36%, 3.5 mg
GAPS = 1.1  # of rows without a label, which are gone when columns are looked at
SAMPLE = 200  # cells looked at to tell dates, numbers and sentences
MANY, MOST = 20, 0.95  # categories that a column of few rows cannot have; share that is nearly all
NUMBERS = 0.8  # share of numbers above which other cells count as missing


@dataclass(frozen=True)
class ColumnSummary:
    """A column at one site."""

    rows: int
    missing: int
    distinct: int
    number: bool  # the file's cells are numbers
    numbers: float = 1.0  # share of cells that are
    dates: float = 0.0
    words: float = 0.0  # per cell
    consecutive: bool = False  # whole numbers, none twice, few left out, as a row number is
    single: str | None = None  # the only value, if there is one


UNTOLD = ColumnSummary(0, 0, 0, number=False)  # of a site that tells nothing of its rows


@dataclass(frozen=True)
class ColumnRole:
    """The role of a column, and why."""

    role: Role
    why: str
    missing: int = 0
    rows: int = 0


def summary_of(column: Array) -> ColumnSummary:
    """What a site tells about a column."""
    if column.dtype != object:
        return _of_numbers(column)
    present = [v for v in column if v is not None]
    distinct = set(present)
    sample = present[:SAMPLE]
    size = max(len(sample), 1)
    return ColumnSummary(
        len(column),
        len(column) - len(present),
        len(distinct),
        number=False,
        numbers=sum(parse_numbers([v], MISSING) is not None for v in sample) / size,
        dates=sum(DATE.fullmatch(v) is not None for v in sample) / size,
        words=sum(len(v.split()) for v in sample) / size,
        single=next(iter(distinct)) if len(distinct) == 1 else None,
    )


def _of_numbers(column: Array) -> ColumnSummary:
    present = column[~np.isnan(column)]
    distinct = np.unique(present)
    spread = distinct[-1] - distinct[0] + 1 if len(distinct) else 0
    whole = (distinct == np.round(distinct)).all()
    return ColumnSummary(
        len(column),
        len(column) - len(present),
        len(distinct),
        number=True,
        consecutive=bool(
            1 < len(distinct) == len(column) and whole and spread <= GAPS * len(column)
        ),
        single=number_text(distinct[0]) if len(distinct) == 1 else None,
    )


def find_roles(
    sites: Sequence[Mapping[str, ColumnSummary]], schema: TableSchema, names: Sequence[str]
) -> dict[str, ColumnRole]:
    """The role of each column in ``names``: what the schema says, else what the summaries tell."""
    told = _told(schema, names)
    if schema.epsilon is not None:
        _require_told(told, schema, names)
    out = {}
    for name in names:
        found = [site[name] for site in sites]
        missing, rows = sum(s.missing for s in found), sum(s.rows for s in found)
        role, why = (told[name], "you said so") if name in told else role_of(name, found)
        if schema.plain:
            role, why = "numeric", "numbers"
        out[name] = ColumnRole(role, why, missing, rows)
    if not any(found.role in USED for found in out.values()):
        each = ", ".join(f"{name} ({found.role})" for name, found in out.items())
        raise DataError(
            f"no column can be an input: {each or 'there is none besides the label'}; add some, "
            "or name one",
            "numeric=COLUMN", "categorical=COLUMN",
        )  # fmt: skip
    return out


def _told(schema: TableSchema, names: Sequence[str]) -> dict[str, Role]:
    """Roles that the user named; a column that does not exist is an error."""
    told: dict[str, Role] = {}
    given: tuple[tuple[Role, Sequence[str]], ...] = (
        ("numeric", tuple(schema.bounds)), ("categorical", tuple(schema.categories)),
        ("numeric", schema.numeric), ("categorical", schema.categorical), ("date", schema.date),
        ("text", schema.text),
    )  # fmt: skip
    for role, columns in given:
        for name in columns:
            if name not in names:
                raise UnknownNameError.of("column", name, names)
            told[name] = role
    return told


def _require_told(told: Mapping[str, Role], schema: TableSchema, names: Sequence[str]) -> None:
    """Raise unless the schema says of each column what a site may not tell under epsilon."""
    for name in names:
        if name not in told:
            raise DataError(
                f"column {name!r} has no role, and under epsilon none is found from the rows; give "
                "its bounds or its categories, make it categorical (hashed) or text, or leave it "
                "out",
                f"bounds={name}=LOW:HIGH", f"categories={name}=A:B", f"categorical={name}",
                f"drop={name}",
            )  # fmt: skip
        if told[name] in ("numeric", "date"):
            schema.bounds_of(name)


def role_of(name: str, sites: Sequence[ColumnSummary]) -> tuple[Role, str]:
    """The role of a column, and why.

    >>> role_of("patient_id", [ColumnSummary(99, 0, 99, number=True)])
    ('id-like', 'its name, and 99 values in 99 rows')
    """
    if all(s.distinct <= 1 for s in sites):
        return _constant(sites)
    rows = sum(s.rows - s.missing for s in sites)
    distinct = sum(s.distinct for s in sites)
    if found := _identifies(name, sites, rows, distinct):
        return "id-like", found
    return _input(name, sites, rows, distinct)


def _constant(sites: Sequence[ColumnSummary]) -> tuple[Role, str]:
    values = sorted({s.single for s in sites if s.single is not None})
    if not values:
        return "constant", "every cell is missing"
    one = f"always {values[0]}" if len(values) == 1 else "one value per site"
    return "constant", one


def _identifies(name: str, sites: Sequence[ColumnSummary], rows: int, distinct: int) -> str | None:
    """Why a column names rows instead of describing them, if it does."""
    if ID_NAME.search(name) and distinct > min(MANY, rows / 2):
        return f"its name, and {distinct} values in {rows} rows"
    if all(s.consecutive for s in sites) and max(s.rows for s in sites) > MANY:
        return "a number per row, nearly without gaps"
    if INDEX_NAME.fullmatch(name) and all(s.distinct == s.rows for s in sites):
        return "a value per row under no name, as pandas writes its row numbers"
    plain = all(not s.number and s.words < 2 and s.dates < MOST for s in sites)
    names = max(s.numbers for s in sites) < NUMBERS and distinct >= max(MOST * rows, MANY)
    if plain and names:
        return f"{distinct} values in {rows} rows"
    return None


def _input(name: str, sites: Sequence[ColumnSummary], rows: int, distinct: int) -> tuple[Role, str]:
    if all(s.number for s in sites):
        most = max(s.distinct for s in sites)
        few = f", {most} values: make it categorical if they are codes"
        return "numeric", f"numbers{few if 2 < most <= 10 else ''}"
    texts = [s for s in sites if not s.number]
    if name == "text" or (_mean(texts, "words") >= 5 and distinct > rows / 2):
        return "text", f"{_mean(texts, 'words'):.0f} words per cell"
    if min(s.dates for s in texts) >= MOST:
        return "date", "days"
    if min(s.numbers for s in sites) >= NUMBERS:
        return "numeric", "numbers, and cells that are none: they count as missing"
    return "categorical", f"{max(s.distinct for s in sites)} values"


def _mean(sites: Sequence[ColumnSummary], what: str) -> float:
    total = sum(s.rows for s in sites)
    return sum(getattr(s, what) * s.rows for s in sites) / total


def misread(columns: Sequence[Array]) -> str:
    """What columns that are taken for names nearly always hold instead; empty if they are names.

    >>> misread([np.array([f"{i} %" for i in range(50)], dtype=object)])
    "numbers with a sign or unit, such as '0 %'; write the numbers alone"
    """
    cells = [v for column in columns for v in as_texts(column[:SAMPLE]) if v is not None]
    most = MOST * len(cells)
    dates = [v for v in cells if SLASHES.fullmatch(v)]
    if dates and len(dates) >= most:
        return (
            f"dates whose day and month are not told apart, such as {dates[0]!r}; write 2024-12-31"
        )
    matches = {v: match for v in {*cells} if (match := SIGNED.fullmatch(v))}
    units = {v: unit for v, m in matches.items() if (unit := m[1] or m[2])}
    signed = [v for v in cells if v in units]
    if len({*units.values()}) == 1 and len(units) >= MANY and len(signed) >= most:
        return f"numbers with a sign or unit, such as {signed[0]!r}; write the numbers alone"
    return ""


def not_numbers(column: Array) -> tuple[int, str]:
    """How many cells of a column of texts are no numbers, and the first of them."""
    cells = [v for v in as_texts(column) if v is not None and numbers_of([v], MISSING) is None]
    return len(cells), cells[0] if cells else ""
