"""The sites of a dataset of tables: read, labelled, split, and prepared without pooling rows.

``discover`` calls :func:`table_sources`. In order: files become sites, rows without a label are
left out, labels become targets, rows are split, columns get roles, and each site's training rows
are counted; the preparation is fitted on those counts, of each site or summed over all of them, and
applied when a source is read. Statistics never come from validation or test rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedshift.data.samples import Domain
from fedshift.data.sources.arrays import ArraySource, Rows
from fedshift.data.sources.source import Read, draw_test
from fedshift.data.sources.tables import roles as found_roles
from fedshift.data.sources.tables.preparation import (
    CategoryPlan,
    NumberPlan,
    Plan,
    TablePreparation,
    TextPlan,
    total,
)
from fedshift.data.sources.tables.reading import Array
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.sites import SiteTable, drop_rows, read_sites, split_of
from fedshift.data.sources.tables.statistics import CategoryStatistics, Statistics
from fedshift.data.sources.tables.targets import Targets, find_targets, label_columns

RESERVED = ("split", "id")  # columns with a meaning of their own


@dataclass(frozen=True)
class TargetSource:
    """A domain whose targets are numbers or several labels; classes are not chosen or renamed."""

    name: str
    classes: tuple[str, ...]
    site: SiteTable
    preparation: TablePreparation
    y: Array  # (N,) or (N, K) float32
    split: Array

    def read(self, classes: Sequence[str], size: int | None) -> Read:  # noqa: ARG002
        """All rows; ``classes`` and ``size`` have no meaning here."""
        x = torch.from_numpy(self.preparation.apply(self.site.columns))
        y = torch.from_numpy(np.ascontiguousarray(self.y))
        split = torch.from_numpy(self.split)
        domain = Domain(self.name, x, y, split, self.classes, is_drawn(self.site))
        return Read(domain, self.site.ids, self.site.left_out)


@dataclass
class Tables:
    """What a dataset of tables gives: its sources, notes, and files to keep beside the data."""

    sources: list[ArraySource | TargetSource] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)  # JSON by file name


def table_sources(paths: Sequence[Path], schema: TableSchema | None = None) -> Tables:
    """The domains of csv, parquet or Excel files, prepared as the schema says."""
    schema = schema or TableSchema()
    sites, notes = read_sites(paths, schema)
    columns = {site.name: site.columns for site in sites}
    targets = find_targets(columns, schema)
    sites = [site.without(label_columns(schema, site.columns)) for site in sites]
    names = [n for n in sites[0].columns if n not in RESERVED]
    summaries = [{n: found_roles.summary_of(s.columns[n]) for n in names} for s in sites]
    roles = found_roles.find_roles(summaries, schema, names)
    used = [n for n in names if roles[n].role in found_roles.USED]
    notes += [*targets.notes, *_role_notes(sites, roles)]
    if schema.impute == "drop":
        sites, targets = _complete(sites, targets, used, schema)
    owners = [n for n in names if roles[n].role == "id-like"]
    marks, more = _splits(sites, targets, used, owners)
    train = [{n: s.columns[n][m == 0] for n in used} for s, m in zip(sites, marks, strict=True)]
    plans, statistics = agree(train, roles, schema)
    fitted = fit_sites(plans, statistics, schema)
    out = Tables(notes=notes + more)
    for site, split, preparation in zip(sites, marks, fitted, strict=True):
        out.sources.append(_source(site, targets, split, preparation))
    out.files["preparation.json"] = _record(sites, fitted, statistics, schema) | {
        "objective": targets.objective,
        "classes": list(targets.classes),
        "schema": schema.model_dump(mode="json"),
    }
    out.files["table.json"] = {
        "objective": targets.objective,
        "target": list(label_columns(schema, columns[sites[0].name])),
        "roles": {name: asdict(found) for name, found in (roles | _dropped(schema)).items()},
        "schema": schema.model_dump(mode="json"),
    }
    return out


def _dropped(schema: TableSchema) -> dict[str, found_roles.ColumnRole]:
    return {name: found_roles.ColumnRole("dropped", "you said so") for name in schema.drop}


def _complete(
    sites: list[SiteTable], targets: Targets, used: Sequence[str], schema: TableSchema
) -> tuple[list[SiteTable], Targets]:
    """Only rows without a missing cell, if the schema asks for that."""
    kept, y = [], {}
    gaps = drop_rows(sites, used, schema, "impute=median")
    for site, keep in zip(sites, gaps, strict=True):
        text = "a cell is missing; set impute to keep the row"
        if keep.any():
            kept.append(site.rows(keep, text))
            y[site.name] = targets.y[site.name][keep]
    return kept, replace(targets, y=y)


def _role_notes(
    sites: Sequence[SiteTable], roles: Mapping[str, found_roles.ColumnRole]
) -> list[str]:
    """A line for each column that is left out, or has cells that do not fit."""
    notes = []
    for name, found in roles.items():
        if found.role in ("id-like", "constant"):
            notes.append(
                f"column {name!r} is {found.role} ({found.why}) and left out; name it as numeric "
                "or categorical to use it"
            )
        texts = [s.columns[name] for s in sites if s.columns[name].dtype == object]
        if found.role == "numeric" and texts:
            counts = [found_roles.not_numbers(column) for column in texts]
            first = next((text for count, text in counts if count), "")
            if number := sum(count for count, _ in counts):
                notes.append(
                    f"column {name!r}: {number} cells are no numbers, such as {first!r}, and count "
                    "as missing; name it as categorical to keep them"
                )
    return notes


def _splits(
    sites: Sequence[SiteTable], targets: Targets, used: Sequence[str], owners: Sequence[str]
) -> tuple[list[Array], list[str]]:
    """Split codes per site: the column ``split``, else a fifth of each class drawn as test.

    ``owners`` are id-like columns: where one names several rows, they are drawn together.
    """
    out, notes = [], []
    for site in sites:
        given = split_of(site)
        y = targets.y[site.name]
        split = np.zeros(len(y), np.uint8) if given is None else given
        if not (split == 2).any():
            rows = np.flatnonzero(split == 0)
            strata = y[rows] if targets.objective == "classification" else np.zeros(len(rows), int)
            several = [n for n in owners if len(set(site.columns[n])) < len(site)]
            split[rows] = draw_test(_content(site, several[:1] or used)[rows], strata, site.name)
            notes += [
                f"site {site.name!r}: rows of one {n!r} are drawn together" for n in several[:1]
            ]
            if given is not None:
                notes.append(
                    f"site {site.name!r}: column split marks no test rows; a fifth is drawn"
                )
        out.append(split)
    return out, notes


def _content(site: SiteTable, used: Sequence[str]) -> Array:
    """The used cells as numbers (N, D), equal where rows are equal, to keep copies together."""
    parts = []
    for name in used:
        column = site.columns[name]
        if column.dtype == object:
            codes: dict[Any, int] = {}
            cells = column.tolist()
            column = np.array([codes.setdefault(v, len(codes)) for v in cells], np.float64)
        parts.append(column)
    return np.ascontiguousarray(np.stack(parts, axis=1))


def agree(
    train: Sequence[Mapping[str, Array]],
    roles: Mapping[str, found_roles.ColumnRole],
    schema: TableSchema,
) -> tuple[TablePreparation, list[dict[str, Statistics]]]:
    """Plans that fit all sites, not yet fitted, and each site's statistics of its training rows."""
    bare = TablePreparation(tuple(_bare(n, roles[n].role, schema) for n in train[0]))
    statistics = [bare.count(columns) for columns in train]
    return TablePreparation(tuple(_agreed(p, statistics, schema) for p in bare.plans)), statistics


def _bare(name: str, role: str, schema: TableSchema) -> Plan:
    if role == "text":
        return TextPlan(name, schema.encoder, schema.words)
    if role == "categorical":
        return CategoryPlan(name)
    return NumberPlan(name, date=role == "date")


def _agreed(plan: Plan, sites: Sequence[Mapping[str, Statistics]], schema: TableSchema) -> Plan:
    """With an indicator if a cell is missing at any site, and the categories of all sites."""
    if isinstance(plan, TextPlan):
        return plan
    found = [site[plan.name] for site in sites]
    lacks = any(one.missing for one in found)
    if isinstance(plan, NumberPlan):
        return replace(plan, indicator=lacks)
    names = {c for one in found if isinstance(one, CategoryStatistics) for c in one.counts}
    if len(names) > schema.one_hot:
        return replace(plan, indicator=lacks, size=schema.hashed)
    return replace(plan, indicator=lacks, categories=tuple(sorted(names)))


def fit_sites(
    plans: TablePreparation, statistics: Sequence[Mapping[str, Statistics]], schema: TableSchema
) -> list[TablePreparation]:
    """One preparation per site: on its own statistics, or all on their sum."""
    if schema.statistics == "site":
        return [plans.fit(own, schema) for own in statistics]
    return [plans.fit(total(statistics), schema)] * len(statistics)


def _source(
    site: SiteTable, targets: Targets, split: Array, preparation: TablePreparation
) -> ArraySource | TargetSource:
    y = targets.y[site.name]
    if targets.objective != "classification":
        return TargetSource(site.name, targets.classes, site, preparation, y, split)
    load = partial(_rows, site, preparation, y, split)
    return ArraySource(site.name, targets.classes, load)


def _rows(site: SiteTable, preparation: TablePreparation, y: Array, split: Array) -> Rows:
    x = preparation.apply(site.columns)
    return Rows(x, y, split, site.ids, site.left_out, is_drawn(site))


def is_drawn(site: SiteTable) -> bool:
    """Whether the table marks no test rows, so that they were drawn."""
    given = split_of(site)
    return given is None or not (given == 2).any()


def _record(
    sites: Sequence[SiteTable],
    fitted: Sequence[TablePreparation],
    statistics: Sequence[Mapping[str, Statistics]],
    schema: TableSchema,
) -> dict[str, Any]:
    """The file that replays the preparation, and what each site had to tell for it."""
    leaves = ["names and roles of columns", "which columns have missing cells"]
    if any(isinstance(one, CategoryStatistics) for one in statistics[0].values()):
        leaves.append("names of categories")
    numbers = {}
    if schema.statistics == "federated":
        leaves.append("per column of numbers: rows, missing cells, sum, sum of squares")
        leaves.append("per column of numbers: counts of values in bins of 2 % width")
        leaves.append("per column of categories: rows, missing cells, rows of each category")
        sizes = [sum(one.size for one in own.values()) for own in statistics]
        numbers = {site.name: size for site, size in zip(sites, sizes, strict=True)}
    record = {"statistics": schema.statistics, "leaves": leaves, "numbers": numbers, "sites": {}}
    if schema.statistics == "federated":
        return record | {"all": fitted[0].to_json()}
    return record | {"sites": {s.name: p.to_json() for s, p in zip(sites, fitted, strict=True)}}
