"""How sites with tables agree on one preparation: two questions to each, and what it answers.

A deployment asks them over the network before round 1 (``deploy.tables``); ``federated`` does the
same in one process while data are prepared, so that both count the same bytes and end with the same
record. First each site describes its columns and names its classes; with all descriptions, columns
get roles. Then each site counts its training rows, and the preparation is fitted on the sums. An
answer holds counts, sums and names of categories, never a row; that is what the ledger declares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedshift.base.errors import DataError
from fedshift.data.sources.spelling import one_spelling
from fedshift.data.sources.tables import roles as found_roles
from fedshift.data.sources.tables.preparation import (
    CategoryPlan,
    NumberPlan,
    Plan,
    TablePreparation,
    TextPlan,
    total,
)
from fedshift.data.sources.tables.reading import as_texts
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.sites import SiteTable
from fedshift.data.sources.tables.statistics import (
    CategoryStatistics,
    NumberStatistics,
    Statistics,
)
from fedshift.data.sources.tables.targets import agreed_classes, label_columns

RESERVED = ("split", "id")  # columns with a meaning of their own
MOST_NAMES = 1000  # categories of a column that a site tells at most, whatever it is asked
Answer = dict[str, Any]


def input_names(site: SiteTable) -> list[str]:
    """Columns that may be inputs, in the order of the table; labels are gone already."""
    return [name for name in site.columns if name not in RESERVED]


def describe(site: SiteTable, schema: TableSchema, objective: str) -> Answer:
    """The first answer: a summary of each column, and the classes that occur."""
    labels = label_columns(schema, site.columns)
    inputs = site.without(labels)
    noisy = schema.epsilon is not None  # then names alone: roles are the schema's
    summaries = {
        n: asdict(found_roles.UNTOLD if noisy else found_roles.summary_of(inputs.columns[n]))
        for n in input_names(inputs)
    }
    out: Answer = {"columns": summaries, "classes": []}
    if objective == "classification":
        names = {str(v) for v in as_texts(site.columns[labels[0]]).tolist()}
        out["classes"] = sorted({schema.rename_label.get(name, name) for name in names})
    return out


def tell(own: Mapping[str, Statistics], schema: TableSchema) -> Answer:
    """The second answer: statistics of training rows; under ``site`` only what must be common."""
    return {name: _told(found, schema) for name, found in own.items()}


def _told(found: Statistics, schema: TableSchema) -> Answer:
    if isinstance(found, CategoryStatistics):
        few = len(found.counts) <= min(schema.one_hot, MOST_NAMES)
        if schema.statistics == "site":
            names = sorted(found.counts) if few else []
            return {"missing": found.missing > 0, "names": names, "many": not few}
        counts = dict(sorted(found.counts.items())) if few else {}
        return {"rows": found.rows, "missing": found.missing, "counts": counts, "many": not few}
    if schema.statistics == "site":
        return {"missing": found.missing > 0}
    out = asdict(found)
    del out["median"]
    return out if schema.impute == "median" else out | {"bins": {}}


def size_of(*answers: Answer) -> int:
    """Bytes of the answers as they travel."""
    return sum(len(packed(answer)) for answer in answers)


def packed(answer: Answer) -> bytes:
    """An answer as it travels: JSON."""
    return json.dumps(answer, separators=(",", ":")).encode()


def leaves(schema: TableSchema, *, categories: bool) -> list[str]:
    """What leaves a site for a preparation, in words."""
    if schema.epsilon is not None:
        return [
            "names of columns", "names of classes",
            f"with noise (discrete Laplace, epsilon {schema.epsilon:g} for one row, this telling): "
            "number of training rows, per column of numbers missing cells and sums within bounds, "
            "per column of categories missing cells and rows of each declared category",
        ]  # fmt: skip
    out = ["names and roles of columns", "names of classes", "which columns have missing cells"]
    if categories:
        out.append("names of categories")
    if schema.statistics == "federated":
        out.append("per column of numbers: rows, missing cells, sum, sum of squares")
        if schema.impute == "median":
            out.append("per column of numbers: counts of values in bins of 2 % width")
        out.append("per column of categories: rows, missing cells, rows of each category")
    return out


def roles_of(described: Mapping[str, Answer], schema: TableSchema) -> dict[str, Any]:
    """What is asked in the second question: roles of columns, and the classes of all sites.

    Raises if a site has other columns than the others.
    """
    try:
        summaries = {
            site: {
                str(n): found_roles.ColumnSummary(**told) for n, told in found["columns"].items()
            }
            for site, found in described.items()
        }
        labels = {s: [str(v) for v in found["classes"]] for s, found in described.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"a site described its table in a way that is not known ({error})"
        ) from None
    first, names = next(iter(summaries.items()))
    for site, found in summaries.items():
        if odd := sorted(found.keys() ^ names.keys()):
            raise DataError(
                f"sites {first} and {site} do not both have the column {', '.join(odd[:10])}; all "
                "tables need the same; rename it, or leave it out",
                f"drop={','.join(odd[:10])}",
            )
    roles = found_roles.find_roles(list(summaries.values()), schema, list(names))
    return {
        "roles": {name: found.role for name, found in roles.items()},
        "classes": list(agreed_classes(labels)) if all(labels.values()) else [],
    }


def bare_plan(name: str, role: str, schema: TableSchema) -> Plan:
    """The plan of a column with this role, before anything was counted."""
    if role == "text":
        return TextPlan(name, schema.encoder, schema.words)
    if role == "categorical":
        return CategoryPlan(name)
    return NumberPlan(name, date=role == "date")


def agreed_plan(
    plan: Plan, found: Sequence[Statistics], schema: TableSchema, *, many: bool = False
) -> Plan:
    """With an indicator if a cell is missing at any site, and the categories of all sites.

    ``many``: some site has more categories than it tells.
    """
    if isinstance(plan, TextPlan):
        return plan
    lacks = any(one.missing > 0 for one in found)
    if isinstance(plan, NumberPlan):
        return replace(plan, indicator=lacks)
    told = [one.counts.keys() for one in found if isinstance(one, CategoryStatistics)]
    alike, _ = one_spelling(told)
    names = {alike.get(c, c) for counts in told for c in counts}
    many = many or (schema.epsilon is not None and plan.name not in schema.categories)
    if many or len(names) > schema.one_hot:
        return replace(plan, indicator=lacks, size=schema.hashed)
    return replace(plan, indicator=lacks, categories=tuple(sorted(names)))


def conclude(
    plans: Sequence[Plan], answers: Sequence[Answer], schema: TableSchema
) -> tuple[TablePreparation, TablePreparation | None]:
    """The agreed plans, and the same fitted on the sums if statistics are federated."""
    counted = [p for p in plans if not isinstance(p, TextPlan)]
    try:
        found = [{p.name: _statistics(p, told[p.name]) for p in counted} for told in answers]
        many = {p.name for p in counted if any(told[p.name].get("many") for told in answers)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"a site counted in a way that is not known ({error!r})") from None
    agreed = TablePreparation(
        tuple(
            agreed_plan(p, [s[p.name] for s in found if p.name in s], schema, many=p.name in many)
            for p in plans
        )
    )
    return agreed, agreed.fit(total(found), schema) if schema.statistics == "federated" else None


def _statistics(plan: Plan, told: Answer) -> Statistics:
    """Statistics from an answer, in which under ``site`` most is left out."""
    rows, missing = int(told.get("rows", 0)), int(told["missing"])
    if isinstance(plan, CategoryPlan):
        counts = told.get("counts", dict.fromkeys(told.get("names", ()), 0))
        return CategoryStatistics(rows, missing, {str(k): int(n) for k, n in counts.items()})
    sums = float(told.get("total", 0)), float(told.get("squares", 0))
    if not all(map(math.isfinite, sums)):
        raise ValueError(f"sums are {sums}")
    bins = {int(k): int(n) for k, n in told.get("bins", {}).items()}
    return NumberStatistics(rows, missing, *sums, bool(told.get("whole")), bins)
