"""Sites with raw tables agree on one preparation before round 1; no row leaves a site.

At the server ``deploy.session`` calls :func:`agree`; at a site ``deploy.flower.apps`` calls
:func:`answer`. The server asks twice, to describe columns and to count training rows
(``sources.tables.agreement``), sends back what follows from the sums, and each site keeps it; so
does the run directory, from which a resumed run takes it. What a site tells is subject to its
policy and stands in the ledger. The run's ``data_options`` are the schema: ``data.label``, ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedshift.base.errors import DataError, RunError
from fedshift.base.files import read_json, write_json
from fedshift.core.config import RunConfig
from fedshift.data.sources.tables import agreement
from fedshift.data.sources.tables.preparation import CategoryPlan, TablePreparation
from fedshift.data.sources.tables.release import release
from fedshift.data.sources.tables.replay import own_split, own_targets, read_own, read_record
from fedshift.data.sources.tables.roles import USED
from fedshift.data.sources.tables.schema import TableSchema, schema_of
from fedshift.deploy.folders import SitePaths, read_site
from fedshift.deploy.policy import require_telling
from fedshift.runs.best import PREPARATION

Ask = Callable[[Mapping[str, Any]], dict[str, str]]  # the same question to all sites


def schema_of_run(run: RunConfig) -> TableSchema:
    """How the sites' tables are read, from the options of the run's data, which are texts."""
    told: dict[str, Any] = {key: str(v) for key, v in run.scenario.data_options.items()}
    if "missing" in told:
        told["missing"] = tuple(told["missing"].split(","))
    if "rename_label" in told:
        pairs = [pair.partition("=") for pair in told["rename_label"].split(",")]
        told["rename_label"] = {old.strip(): new.strip() for old, _, new in pairs}
    told["objective"] = run.scenario.objective
    schema = schema_of(told)
    if schema.impute == "drop":
        raise DataError("impute=drop is not done at sites; take median or mean", "set=data.impute")
    return schema


# server
def agree(ask: Ask, run: RunConfig) -> dict[str, Any]:
    """The record of the preparation that all sites share."""
    schema = schema_of_run(run)
    first = {site: _read(site, text) for site, text in ask({"step": "describe"}).items()}
    question = agreement.roles_of(first, schema)
    if run.scenario.objective != "classification":
        several = run.scenario.objective == "multi-label"
        question["classes"] = list(schema.label) if several else [",".join(schema.label)]
    replies = ask({"step": "count", **question})
    second = {site: _read(site, text) for site, text in replies.items()}
    plans = _plans(question, schema).plans
    agreed, fitted = agreement.conclude(plans, list(second.values()), schema)
    told = {site: agreement.size_of(first[site], second[site]) for site in first}
    categories = any(isinstance(plan, CategoryPlan) for plan in plans)
    return {
        "statistics": schema.statistics,
        "leaves": agreement.leaves(schema, categories=categories),
        "sites": {},
        "agreed": agreed.to_json(),
        "objective": run.scenario.objective,
        "classes": question["classes"],
        "owners": _owners(question),
        "told": told,
        "schema": schema.model_dump(mode="json"),
    } | ({"all": fitted.to_json()} if fitted else {})


def _read(site: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RunError(f"site {site} described its table in a way that cannot be read")
    return found


def stored(path: Path) -> dict[str, Any] | None:
    """The record that a run directory holds already."""
    file = path / PREPARATION
    found: dict[str, Any] | None = read_json(file).get("table") if file.exists() else None
    return found


# site
def answer(paths: SitePaths, run: RunConfig, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What this site tells of its table, if its policy allows that."""
    step, schema, settings = str(asked.get("step")), schema_of_run(run), read_site(paths.root)
    if step not in ("describe", "count") or settings.folder is None:
        raise RunError(f"site {settings.id} was asked to {step}, which it does not know")
    require_telling(paths, run, step, schema.epsilon)
    own = read_own(Path(settings.folder), settings.domain or settings.id, schema)
    own = own.without(schema.drop)
    if step == "describe":
        return agreement.describe(own, schema, run.scenario.objective)
    plans = _plans(asked, schema)
    record = {
        "all": plans.to_json(),
        "owners": _owners(asked),
        "objective": run.scenario.objective,
        "classes": asked["classes"],
        "sites": {},
    }
    split = own_split(record, own, own_targets(record, own, schema), schema)
    train = {p.name: own.columns[p.name][split == 0] for p in plans.plans}
    told = plans.count(train) if schema.epsilon is None else release(plans, train, schema)
    return agreement.tell(told, schema)


def keep(paths: SitePaths, run: RunConfig, record: Mapping[str, Any]) -> None:
    """Write the agreed preparation to this site's folder; one that cannot be read is refused."""
    file = paths.preparations / f"{run.name}.json"
    write_json(file, record)
    try:
        found = read_record(file)
        TablePreparation.from_json(found.get("all") or found["agreed"])
    except (DataError, KeyError, AttributeError) as error:
        file.unlink()
        raise RunError(f"the server sent a preparation that cannot be read ({error})") from None


def _plans(question: Mapping[str, Any], schema: TableSchema) -> TablePreparation:
    roles = question["roles"].items()
    used = [agreement.bare_plan(name, role, schema) for name, role in roles if role in USED]
    return TablePreparation(tuple(used))


def _owners(question: Mapping[str, Any]) -> list[str]:
    return [name for name, role in question["roles"].items() if role == "id-like"]
