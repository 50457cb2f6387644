"""A table at a new site, prepared exactly as the federation's data were.

Deployed sites call :func:`replay` with the file ``preparation.json`` that ``fedshift data add``
keeps: it names the columns, the target and how cells become numbers. Nothing is found out anew, and
a label that the federation does not know is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedshift.base.errors import DataError
from fedshift.data.samples import Domain
from fedshift.data.sources.source import Read
from fedshift.data.sources.tables.drawn import is_drawn, splits
from fedshift.data.sources.tables.preparation import TablePreparation
from fedshift.data.sources.tables.reading import Array, as_texts
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.sites import SiteTable, join_sites, read_sites
from fedshift.data.sources.tables.targets import Targets, find_targets, known_labels


def read_record(path: Path) -> dict[str, Any]:
    """The content of a ``preparation.json``."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        TableSchema.model_validate(record["schema"])
        for key in ("sites", "statistics", "objective", "classes"):
            record[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is no preparation ({error}); take preparation.json of prepared tables"
        ) from None
    return record


def replay(record: Mapping[str, Any], path: Path, site: str) -> Read:
    """The rows of a site's table as a domain; all of the file is this site's.

    Under the statistics ``site``, a site that the record does not know fits fill, mean and scale
    on its own training rows; columns, categories and marks of missing cells stay the federation's.
    """
    schema = TableSchema.model_validate(record["schema"])
    own = read_own(path, site, schema)
    y = own_targets(record, own, schema)
    split = own_split(record, own, y, schema)
    preparation = _preparation(record, own, split, schema)
    x = torch.from_numpy(preparation.apply(own.columns))
    marks = torch.from_numpy(split)
    classes = tuple(record["classes"])
    domain = Domain(site, x, torch.from_numpy(y), marks, classes, is_drawn(own))
    return Read(domain, own.ids, own.left_out)


def read_own(path: Path, site: str, schema: TableSchema) -> SiteTable:
    """The labelled rows of a file, all of them this site's, whatever a column says."""
    sites, _ = read_sites([path], schema.model_copy(update={"domain": "domain", "drop": ()}))
    return join_sites(site, sites).without([name for name in schema.drop if name == "split"])


def preparation_of(record: Mapping[str, Any], site: str) -> TablePreparation:
    """The preparation of a site from the file ``preparation.json``.

    A site that the file does not know takes the federated one; under ``site`` it fits its own.
    """
    if record["statistics"] == "federated":
        return TablePreparation.from_json(record["all"])
    known = record["sites"]
    if site in known:
        return TablePreparation.from_json(known[site])
    raise DataError(
        f"the data were prepared with each site's own statistics, and {site!r} has none; known: "
        f"{', '.join(known)}"
    )


def _preparation(
    record: Mapping[str, Any], own: SiteTable, split: Array, schema: TableSchema
) -> TablePreparation:
    if record["statistics"] == "federated" or own.name in record["sites"]:
        return preparation_of(record, own.name)
    agreed = agreed_of(record)
    names = [plan.name for plan in agreed.plans if plan.name in own.columns]
    train = {name: own.columns[name][split == 0] for name in names}
    return agreed.fit(agreed.count(train), schema)


def agreed_of(record: Mapping[str, Any]) -> TablePreparation:
    """What all sites have in common: columns, categories, marks of missing cells."""
    known = record.get("all") or record.get("agreed") or next(iter(record["sites"].values()))
    return TablePreparation.from_json(known)


def own_targets(record: Mapping[str, Any], own: SiteTable, schema: TableSchema) -> Array:
    """Class numbers (N,), or numbers (N,) or labels (N, K) as float32."""
    classes: Sequence[str] = record["classes"]
    if record["objective"] == "classification":
        labels = as_texts(own.columns[",".join(schema.label)])
        return known_labels(labels, classes, schema.rename_label)
    told = schema.model_copy(update={"objective": record["objective"]})
    found: Targets = find_targets({own.name: own.columns}, told)
    return found.y[own.name]


def own_split(record: Mapping[str, Any], own: SiteTable, y: Array, schema: TableSchema) -> Array:
    """Split codes (N,) of a site's rows, drawn as in a simulation where the table marks none."""
    used = [plan.name for plan in agreed_of(record).plans if plan.name in own.columns]
    owners = [name for name in record.get("owners", ()) if name in own.columns]
    labels = np.array(record["classes"])[y] if record["objective"] == "classification" else y
    targets = Targets(str(record["objective"]), (), {own.name: labels})
    (split,), _ = splits([own], targets, used, owners, alone=schema.epsilon is not None)
    return split
