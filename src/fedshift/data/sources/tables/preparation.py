"""How the cells of a table become the numbers of a vector, fitted once and replayed anywhere.

``federated`` fits it on the statistics of training rows and keeps it as JSON beside the prepared
data; prediction, a new site and a deployment read that file and call :meth:`TablePreparation.apply`
on their own columns. It never sees a row while it is fitted.

A number is filled with the median (or mean) and standardised; a category becomes one column per
name, or is hashed; a date becomes its day; a text goes through ``sources.text``. A column with
missing cells at some site gets a further column that is 1 where the cell was missing.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Self

import numpy as np

from fedshift.base.errors import DataError
from fedshift.data.sources import text
from fedshift.data.sources.tables.reading import (
    Array,
    as_texts,
    number_text,
    numbers_of,
    parse_numbers,
)
from fedshift.data.sources.tables.schema import MISSING, TableSchema
from fedshift.data.sources.tables.statistics import (
    CategoryStatistics,
    NumberStatistics,
    Statistics,
    of_categories,
    of_numbers,
)

LARGEST_SQUARES = 1e300  # of a sum that stays a float, whatever is added to it
FORMAT = 1
DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}\.\d{1,2}\.\d{4}")


def as_numbers(column: Array) -> Array:
    """A column as numbers; a cell that is none counts as missing."""
    if column.dtype != object:
        return column
    whole = numbers_of(["" if v is None else str(v) for v in column], MISSING)
    return np.array([_number(v) for v in column], dtype=np.float64) if whole is None else whole


def _number(value: str | None) -> float:
    found = None if value is None else numbers_of([str(value)], MISSING)
    return float("nan") if found is None else float(found[0])


def as_days(column: Array) -> Array:
    """A column of dates as days since 1970; a cell that is no date counts as missing.

    >>> as_days(np.array(["1970-01-11", "2.1.1970", None], dtype=object)).tolist()
    [10.0, 1.0, nan]
    """
    return np.array([_day(v) for v in as_texts(column)], dtype=np.float64)


def _day(value: str | None) -> float:
    if value is None or not DATE.fullmatch(value):
        return float("nan")
    try:
        if "." in value[:3]:
            found = datetime.strptime(value, "%d.%m.%Y")
        else:
            year, month, day = re.split(r"[-/]", re.split(r"[ T]", value)[0])
            found = datetime(int(year), int(month), int(day))
    except ValueError:
        return float("nan")
    return float((found - datetime(1970, 1, 1)).days)


@dataclass(frozen=True)
class NumberPlan:
    """(x - mean) / scale, with ``fill`` where a cell is missing; of a date, x is its day."""

    kind: ClassVar[str] = "number"
    name: str
    fill: float = 0.0
    mean: float = 0.0
    scale: float = 1.0
    indicator: bool = False
    date: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        return (self.name, *((f"{self.name} missing",) if self.indicator else ()))

    def count(self, column: Array) -> NumberStatistics:
        """Statistics of this column at one site; raises if no float holds the sum of squares."""
        values = self.values(column)
        largest = np.nanmax(np.abs(values), initial=0.0)
        if largest > math.sqrt(LARGEST_SQUARES / max(len(values), 1)):
            raise DataError(
                f"column {self.name!r} holds {largest:g}, too large to standardise the column by "
                "its mean and deviation; mend the cell, or leave the column out",
                f"drop={self.name}",
            )
        return of_numbers(values)

    def values(self, column: Array) -> Array:
        """The column as numbers, nan where missing."""
        return as_days(column) if self.date else as_numbers(column)

    def fit(self, found: NumberStatistics, schema: TableSchema) -> NumberPlan:
        """With fill, mean and scale of the statistics."""
        if schema.epsilon is not None:
            return self._fit_noisy(found, schema)
        fill = found.centre("mean" if schema.impute == "mean" else "median")
        if schema.scale == "none" or schema.plain:
            return replace(self, fill=fill)
        mean, scale = found.moments(fill)
        return replace(self, fill=fill, mean=mean, scale=scale)

    def _fit_noisy(self, found: NumberStatistics, schema: TableSchema) -> NumberPlan:
        """Missing cells hold the mean, so the mean of the filled column is the same."""
        mean, scale = found.within(schema.bounds_of(self.name))
        if schema.scale == "none":
            return replace(self, fill=mean)
        return replace(self, fill=mean, mean=mean, scale=scale)

    def apply(self, column: Array) -> Array:
        """(N, 1), or (N, 2) with the indicator."""
        x = self.values(column)
        lacks = np.isnan(x)
        out = [(np.where(lacks, self.fill, x) - self.mean) / self.scale]
        return np.stack([*out, *([lacks] if self.indicator else [])], axis=1)


@dataclass(frozen=True)
class CategoryPlan:
    """One column per category; an unknown one is all zeros. Without names, hashed to ``size``."""

    kind: ClassVar[str] = "category"
    name: str
    fill: str = ""
    categories: tuple[str, ...] = ()
    size: int = 0  # columns if hashed
    indicator: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        names = [f"#{i}" for i in range(self.size)] if self.size else list(self.categories)
        names += ["missing"] if self.indicator else []
        return tuple(f"{self.name} {name}" for name in names)

    def count(self, column: Array) -> CategoryStatistics:
        """Statistics of this column at one site."""
        return of_categories(as_texts(column))

    def fit(self, found: CategoryStatistics, _schema: TableSchema) -> CategoryPlan:
        """With the most frequent category as fill."""
        if self.categories:  # in one spelling
            known, counts = self._known(), dict.fromkeys(self.categories, 0)
            for cell, count in found.counts.items():
                if (at := self._place(cell, known)) >= 0:
                    counts[self.categories[at]] += count
            found = replace(found, counts={c: n for c, n in counts.items() if n})
        return replace(self, fill=found.most_frequent())

    def apply(self, column: Array) -> Array:
        """(N, categories or size), and one more with the indicator."""
        cells = as_texts(column)
        width = self.size or len(self.categories)
        out = np.zeros((len(cells), width + self.indicator))
        known = self._known()
        at = self._places(cells, known)
        lacks = np.array([c is None for c in cells], dtype=bool)
        at[lacks] = self._place(self.fill, known) if self.fill else -1
        out[np.flatnonzero(at >= 0), at[at >= 0]] = 1
        if self.indicator:
            out[:, -1] = lacks
        return out

    def tally(self, cells: Array) -> dict[str, int]:
        """How many cells are each of the categories; cells that are none count nowhere."""
        at = self._places(cells, self._known())
        counts = np.bincount(at[at >= 0], minlength=len(self.categories))
        return dict(zip(self.categories, counts.tolist(), strict=True))

    def _known(self) -> dict[str, int]:
        """By spelling the column of a category; its own goes before others of the same name."""
        known = {c.casefold(): i for i, c in enumerate(self.categories)}
        known |= {_normal(c): i for i, c in enumerate(self.categories)}
        return known | {c: i for i, c in enumerate(self.categories)}

    def _places(self, cells: Array, known: Mapping[str, int]) -> Array:
        place = {None: -1} | {c: self._place(c, known) for c in set(cells) if c is not None}
        return np.array([place[c] for c in cells], dtype=np.int64)

    def _place(self, cell: str, known: Mapping[str, int]) -> int:
        if not self.size:
            ways = (cell, _normal(cell), cell.casefold())
            return next((known[way] for way in ways if way in known), -1)
        mark = hashlib.blake2b(cell.encode(), digest_size=8).digest()
        return int.from_bytes(mark, "big") % self.size


def _normal(cell: str) -> str:
    """A category as it would be spelt in a column of numbers: 1.0 is 1, whoever wrote it."""
    number = parse_numbers([cell], frozenset())
    return cell if number is None or np.isnan(number[0]) else number_text(number[0])


@dataclass(frozen=True)
class TextPlan:
    """A text as the vector of an encoder; nothing is fitted."""

    kind: ClassVar[str] = "text"
    name: str
    encoder: str = "words"
    size: int = 1024  # columns of hashed words

    def apply(self, column: Array) -> Array:
        """(N, D)."""
        return text.encode(list(as_texts(column)), self.encoder, self.size)


Plan = NumberPlan | CategoryPlan | TextPlan
PLANS: dict[str, type[Plan]] = {p.kind: p for p in (NumberPlan, CategoryPlan, TextPlan)}


@dataclass(frozen=True)
class TablePreparation:
    """One plan per column that is used, in the order of the vector.

    >>> rows = np.array([1.0, 3.0, np.nan])
    >>> plans = TablePreparation((NumberPlan("age", indicator=True),))
    >>> fitted = plans.fit({"age": of_numbers(rows)}, TableSchema())
    >>> fitted.apply({"age": rows}).tolist()[2]
    [0.0, 1.0]
    """

    plans: tuple[Plan, ...]

    def count(self, columns: Mapping[str, Array]) -> dict[str, Statistics]:
        """Statistics of one site's training rows, by column; texts have none."""
        self._check(columns)
        return {p.name: p.count(columns[p.name]) for p in self.plans if not isinstance(p, TextPlan)}

    def fit(self, found: Mapping[str, Statistics], schema: TableSchema) -> TablePreparation:
        """Fitted on the statistics of one site, or on the sum of several sites'."""
        return TablePreparation(tuple(_fit(plan, found, schema) for plan in self.plans))

    def apply(self, columns: Mapping[str, Array]) -> Array:
        """Vectors (N, D) float32 of the columns of a table, which may be in any order."""
        self._check(columns)
        parts = [plan.apply(columns[plan.name]) for plan in self.plans]
        return np.ascontiguousarray(np.concatenate(parts, axis=1), dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"format": FORMAT, "plans": [{"kind": p.kind, **asdict(p)} for p in self.plans]}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        try:
            if told["format"] != FORMAT:
                raise DataError(f"format {told['format']} of a preparation is not {FORMAT}")
            return cls(tuple(_plan(dict(one)) for one in told["plans"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"a preparation cannot be read ({error!r}); prepare again") from None

    def _check(self, columns: Mapping[str, Array]) -> None:
        if lacking := [p.name for p in self.plans if p.name not in columns]:
            have = ", ".join(list(columns)[:20]) or "nothing that is known"
            raise DataError(
                f"the table has no column {', '.join(lacking)}; the model needs it, and the table "
                f"has {have}"
            )


def _fit(plan: Plan, statistics: Mapping[str, Statistics], schema: TableSchema) -> Plan:
    if isinstance(plan, TextPlan):
        return plan
    found = statistics[plan.name]
    if isinstance(plan, NumberPlan) and isinstance(found, NumberStatistics):
        return plan.fit(found, schema)
    if isinstance(plan, CategoryPlan) and isinstance(found, CategoryStatistics):
        return plan.fit(found, schema)
    raise DataError(f"statistics of column {plan.name!r} are of another kind; count them again")


def _plan(told: dict[str, Any]) -> Plan:
    kind = PLANS[told.pop("kind")]
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
    return kind(**values)


def total(sites: Sequence[Mapping[str, Statistics]]) -> dict[str, Statistics]:
    """The sum of the sites' statistics, by column."""
    out = dict(sites[0])
    for site in sites[1:]:
        out = {name: out[name] + site[name] for name in out}  # type: ignore[operator]
    return out
