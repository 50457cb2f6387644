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
from fedshift.data.sources.source import Read
from fedshift.data.sources.spelling import one_spelling
from fedshift.data.sources.tables import agreement
from fedshift.data.sources.tables import roles as found_roles
from fedshift.data.sources.tables.agreement import agreed_plan, bare_plan
from fedshift.data.sources.tables.drawn import is_drawn, splits
from fedshift.data.sources.tables.preparation import TablePreparation, total
from fedshift.data.sources.tables.reading import Array
from fedshift.data.sources.tables.release import release
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.sites import SiteTable, drop_rows, read_sites
from fedshift.data.sources.tables.statistics import CategoryStatistics, Statistics
from fedshift.data.sources.tables.targets import Targets, find_targets, label_columns


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
    described = {s.name: agreement.describe(s, schema, targets.objective) for s in sites}
    sites = [site.without(label_columns(schema, site.columns)) for site in sites]
    names = agreement.input_names(sites[0])
    summaries = [
        {n: found_roles.ColumnSummary(**one["columns"][n]) for n in names}
        for one in described.values()
    ]
    roles = found_roles.find_roles(summaries, schema, names)
    used = [n for n in names if roles[n].role in found_roles.USED]
    notes += [*targets.notes, *_role_notes(sites, roles)]
    if schema.impute == "drop":
        sites, targets = _complete(sites, targets, used, schema)
    owners = [n for n in names if roles[n].role == "id-like"]
    marks, more = splits(sites, targets, used, owners, alone=schema.epsilon is not None)
    train = [{n: s.columns[n][m == 0] for n in used} for s, m in zip(sites, marks, strict=True)]
    plans, statistics = agree(train, roles, schema)
    told = {
        site.name: agreement.size_of(described[site.name], agreement.tell(own, schema))
        for site, own in zip(sites, statistics, strict=True)
    }
    fitted = fit_sites(plans, statistics, schema)
    out = Tables(notes=notes + more)
    for site, split, preparation in zip(sites, marks, fitted, strict=True):
        out.sources.append(_source(site, targets, split, preparation))
    out.files["preparation.json"] = _record(sites, fitted, statistics, schema) | {
        "objective": targets.objective,
        "classes": list(targets.classes),
        "owners": owners,
        "told": told,
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
        if found.role in ("categorical", "id-like") and (held := found_roles.misread(texts)):
            notes.append(f"column {name!r} is taken for names and holds {held}")
        if found.role == "categorical":
            spelt = [{v for v in column if v is not None} for column in texts]
            notes += [f"column {name!r}: {note}" for note in one_spelling(spelt)[1]]
        if found.role == "numeric" and texts:
            counts = [found_roles.not_numbers(column) for column in texts]
            first = next((text for count, text in counts if count), "")
            if number := sum(count for count, _ in counts):
                notes.append(
                    f"column {name!r} has cells that are no numbers ({number}, such as {first!r}): "
                    "they count as missing; name it as categorical to keep them"
                )
    return notes


def agree(
    train: Sequence[Mapping[str, Array]],
    roles: Mapping[str, found_roles.ColumnRole],
    schema: TableSchema,
) -> tuple[TablePreparation, list[dict[str, Statistics]]]:
    """Plans that fit all sites, not yet fitted, and each site's statistics of its training rows.

    Under an epsilon these are what the site releases, and nothing else is known of its rows.
    """
    bare = TablePreparation(tuple(bare_plan(n, roles[n].role, schema) for n in train[0]))
    count = bare.count if schema.epsilon is None else partial(release, bare, schema=schema)
    statistics = [count(columns) for columns in train]
    found = {p.name: [own[p.name] for own in statistics if p.name in own] for p in bare.plans}
    plans = tuple(agreed_plan(p, found[p.name], schema) for p in bare.plans)
    return TablePreparation(plans), statistics


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


def _record(
    sites: Sequence[SiteTable],
    fitted: Sequence[TablePreparation],
    statistics: Sequence[Mapping[str, Statistics]],
    schema: TableSchema,
) -> dict[str, Any]:
    """The file that replays the preparation, and what each site had to tell for it."""
    categories = any(isinstance(one, CategoryStatistics) for one in statistics[0].values())
    numbers = {}
    if schema.statistics == "federated":
        sizes = [sum(one.size for one in own.values()) for own in statistics]
        numbers = {site.name: size for site, size in zip(sites, sizes, strict=True)}
    record = {
        "statistics": schema.statistics,
        "leaves": agreement.leaves(schema, categories=categories),
        "numbers": numbers,
        "sites": {},
    }
    if schema.statistics == "federated":
        return record | {"all": fitted[0].to_json()}
    return record | {"sites": {s.name: p.to_json() for s, p in zip(sites, fitted, strict=True)}}
