"""Files of tables as sites: which rows belong to whom, which have a label, which split they name.

``federated`` builds on it. Rows are left out only where nothing can be learnt from them, each is
reported, and losing more than a little is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedshift.base.errors import DataError, UnknownNameError
from fedshift.data.sources.images import SPLITS
from fedshift.data.sources.tables.reading import Array, Table, as_texts, read_table
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.targets import label_columns

CODES = {"0": 0, "1": 2, "2": 1}  # of a file: 0 train, 1 test, 2 validation; ours: 2 is test
A_FEW = 3  # rows that may always be left out


@dataclass(frozen=True)
class SiteTable:
    """The rows of one site."""

    name: str
    columns: dict[str, Array]
    ids: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, keep: Array, why: str) -> SiteTable:
        """The rows where ``keep`` is true; the others are left out with a reason."""
        if keep.all():
            return self
        lost = tuple(f"{self.ids[i]}: {why}" for i in np.flatnonzero(~keep))
        columns = {name: column[keep] for name, column in self.columns.items()}
        ids = tuple(self.ids[i] for i in np.flatnonzero(keep))
        return SiteTable(self.name, columns, ids, (*self.left_out, *lost))

    def without(self, names: Sequence[str]) -> SiteTable:
        """Without some columns."""
        return replace(self, columns={n: c for n, c in self.columns.items() if n not in names})


def read_sites(paths: Sequence[Path], schema: TableSchema) -> tuple[list[SiteTable], list[str]]:
    """The sites of several files, by name, with the rows that have a label; and notes."""
    texts = (schema.domain, "site", "split", "id")
    tables = [read_table(path, schema, texts) for path in paths]
    for table in tables:
        _check_labels(table, schema)
    tables = _undropped(tables, schema)
    column, notes = _site_column(tables, schema)
    _check_same(tables, column)
    parts: dict[str, list[SiteTable]] = {}
    for table in tables:
        for part in _by_site(table, column, list(tables[0].columns)):
            parts.setdefault(part.name, []).append(part)
    sites = [_joined(parts[name]) for name in sorted(parts)]
    labels = label_columns(schema, sites[0].columns)
    return _labelled(sites, labels, schema), notes


def _undropped(tables: Sequence[Table], schema: TableSchema) -> list[Table]:
    """Without the columns that the user drops, each of which must exist somewhere."""
    have = {name for table in tables for name in table.columns}
    for name in schema.drop:
        if name not in have:
            raise UnknownNameError.of("column", name, have)
    return [
        replace(t, columns={n: c for n, c in t.columns.items() if n not in schema.drop})
        for t in tables
    ]


def _check_labels(table: Table, schema: TableSchema) -> None:
    for label in label_columns(schema, table.columns):
        if label not in table.columns:
            found = ", ".join(table.columns)
            raise DataError(
                f"{table.path} has no column {label!r}; it has {found}; name the label column",
                "label=COLUMN",
            )


def _site_column(tables: Sequence[Table], schema: TableSchema) -> tuple[str, list[str]]:
    """The column that names the site; ``site`` if there is none called ``domain``."""
    asked = schema.domain
    have = [asked in table.columns for table in tables]
    if asked != "domain" and not any(have):
        raise DataError(
            f"{tables[0].path} has no column {asked!r}; it has {', '.join(tables[0].columns)}; "
            "name the column of the site", "domain=COLUMN",
        )  # fmt: skip
    if asked == "domain" and not any(have) and all("site" in t.columns for t in tables):
        return "site", ["column 'site' names the sites"]
    return asked, []


def _check_same(tables: Sequence[Table], site: str) -> None:
    """Raise unless all files have the same columns, apart from the site's."""
    free = {site, "split", "id"}
    first = set(tables[0].columns) - free
    for table in tables[1:]:
        names = set(table.columns) - free
        if names != first:
            odd = sorted(names ^ first)
            more = f" and {len(odd) - 10} more" if len(odd) > 10 else ""
            raise DataError(
                f"{table.path.name} and {tables[0].path.name} do not both have the column "
                f"{', '.join(odd[:10])}{more}; all files need the same; rename it, or leave it out",
                f"drop={','.join(odd[:10])}",
            )


def _by_site(table: Table, column: str, names: Sequence[str]) -> list[SiteTable]:
    """The rows of a file by site, columns in the order of the first file."""
    rows = len(table)
    of = np.full(rows, table.path.stem, dtype=object)
    if column in table.columns:
        told = as_texts(table.columns[column])
        of = np.where(told == np.array(None), of, told)
    unit = ":" if table.path.suffix.lower() in (".csv", ".tsv") else ", row "
    file = f"{table.path.name}{unit}"
    ids = as_texts(table.columns["id"]) if "id" in table.columns else np.full(rows, None, object)
    kept = [n for n in names if n in table.columns and n != column]
    out = []
    found, code = np.unique(of.astype(np.str_), return_inverse=True)
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(found)))[:-1]
    for name, at in zip(found, np.split(order, ends), strict=True):
        named = zip(ids[at].tolist(), table.lines[at].tolist(), strict=True)
        marks = tuple(f"{file}{line}" if mark is None else str(mark) for mark, line in named)
        columns = {n: table.columns[n][at] for n in kept}
        columns |= {n: table.columns[n][at] for n in ("split",) if n in table.columns}
        out.append(SiteTable(str(name), columns, marks))
    return out


def join_sites(name: str, sites: Sequence[SiteTable]) -> SiteTable:
    """All rows as those of one site."""
    left_out = tuple(line for site in sites for line in site.left_out)
    return replace(_joined(sites), name=name, left_out=left_out)


def _joined(parts: Sequence[SiteTable]) -> SiteTable:
    """One site whose rows lie in several files."""
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for name in parts[0].columns:
        pieces = [part.columns.get(name, np.full(len(part), None, object)) for part in parts]
        mixed = len({piece.dtype for piece in pieces}) > 1
        columns[name] = np.concatenate([as_texts(p) for p in pieces] if mixed else pieces)
    return SiteTable(parts[0].name, columns, tuple(i for part in parts for i in part.ids))


def missing(column: Array) -> Array:
    """Where cells are missing."""
    return column == np.array(None) if column.dtype == object else np.isnan(column)


def _labelled(
    sites: list[SiteTable], labels: Sequence[str], schema: TableSchema
) -> list[SiteTable]:
    """The rows that have a label."""
    kept = drop_rows(sites, labels, schema, "may_drop=SHARE")
    named = ", ".join(map(repr, labels))
    why = f"column {named} is empty; give the row a label"
    found = [site.rows(keep, why) for site, keep in zip(sites, kept, strict=True)]
    gone = tuple(line for site in found if not len(site) for line in site.left_out)
    first, *rest = [site for site in found if len(site)]
    return [replace(first, left_out=(*gone, *first.left_out)), *rest]


def drop_rows(
    sites: Sequence[SiteTable], columns: Sequence[str], schema: TableSchema, option: str
) -> list[Array]:
    """Which rows have no missing cell in ``columns``; raise if a site loses more than a little."""
    gaps = [{n: missing(site.columns[n]) for n in columns} for site in sites]
    kept = [~np.any(list(found.values()), axis=0) for found in gaps]
    lost = {s.name: (int((~k).sum()), len(k)) for s, k in zip(sites, kept, strict=True)}
    if not any(all_rows > gone for gone, all_rows in lost.values()):
        raise DataError(f"no row can be used: column {', '.join(columns)} is empty everywhere")
    too = [n for n, (gone, rows) in lost.items() if gone > max(A_FEW, schema.may_drop * rows)]
    if schema.may_drop < 1:
        too += [n for n, (gone, rows) in lost.items() if gone == rows and n not in too]
    if not too:
        return kept
    counts = {n: sum(int(found[n].sum()) for found in gaps) for n in columns}
    worst = sorted((n for n in columns if counts[n]), key=lambda n: -counts[n])[:5]
    each = ", ".join(f"{n} {lost[n][0]} of {lost[n][1]}" for n in too)
    named = ", ".join(f"{n} ({counts[n]})" for n in worst)
    raise DataError(
        f"rows with an empty cell would be left out: {each}; empty in the columns {named}; more "
        f"than {schema.may_drop:.0%} is not done silently",
        *dict.fromkeys((option, "may_drop=SHARE")),
    )


def split_of(site: SiteTable) -> Array | None:
    """Split codes of the column ``split``, (N,) uint8, or None if there is no such column."""
    if "split" not in site.columns:
        return None
    told = as_texts(site.columns["split"])
    known = {v: CODES.get(str(v), SPLITS.get(str(v).lower())) for v in set(told)}
    if odd := [v for v, code in known.items() if code is None]:
        i = next(i for i, v in enumerate(told) if v == odd[0])
        raise DataError(
            f"{site.ids[i]} of site {site.name!r}: column 'split' holds {odd[0] or 'nothing'!r}; "
            "expected train, val or test, or 0 (train), 1 (test) or 2 (validation); mend it, or "
            "leave the column out", "drop=split",
        )  # fmt: skip
    return np.array([known[v] for v in told], dtype=np.uint8)
