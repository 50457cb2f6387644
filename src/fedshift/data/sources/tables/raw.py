"""Raw rows for a model to predict: a file, a DataFrame or rows, prepared as the training rows were.

``experiment.raw`` calls it for loaded models. Cells are read as the federation's schema says, and
what becomes of them is replayed from its record (``preparation.json``): nothing is fitted, unless a
site that the federation does not know brings rows of its own to fit on. No label is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.base.errors import DataError
from fedshift.base.logs import log
from fedshift.data.sources.tables.preparation import CategoryPlan, NumberPlan, TablePreparation
from fedshift.data.sources.tables.reading import Array, as_texts, from_values, read_table
from fedshift.data.sources.tables.replay import agreed_of, preparation_of
from fedshift.data.sources.tables.roles import not_numbers
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.sites import missing
from fedshift.data.sources.tables.targets import find_targets, known_labels, label_columns

KINDS = "a csv, parquet or xlsx file, a DataFrame, or rows as mappings from column to cell"


def prepare_rows(record: Mapping[str, Any], raw: Any, site: str | None, reference: Any) -> Array:
    """Inputs (N, D) float32 of raw rows.

    ``site`` is whose rows they are, which matters where each site had statistics of its own;
    ``reference`` are rows of a site that the record does not know, for its fill, mean and scale.
    """
    preparation = _preparation(record, site, reference)
    columns = columns_of(raw, preparation, TableSchema.model_validate(record["schema"]))
    for plan in preparation.plans:
        column = columns.get(plan.name)
        if isinstance(plan, NumberPlan) and column is not None and column.dtype == object:
            count, first = (0, "") if plan.date else not_numbers(column)
            if count:
                log.warning(
                    "column %r has cells that are no numbers (%d, such as %r): they count as "
                    "missing",
                    plan.name, count, first,
                )  # fmt: skip
    return preparation.apply(columns)


def with_site(record: Mapping[str, Any], site: str, raw: Any) -> dict[str, Any]:
    """The record with a new site's own statistics, fitted on its rows; else as it is."""
    if record["statistics"] == "federated" or site in record["sites"]:
        return dict(record)
    fitted = _preparation(record, site, raw).to_json()
    return {**record, "sites": {**record["sites"], site: fitted}}


def labels_of(record: Mapping[str, Any], raw: Any) -> tuple[Array, Array] | None:
    """Targets of the rows that have one, and which these are (N,); None without such a column.

    Classes are numbered as the record does; a label that it does not know is an error.
    """
    schema = TableSchema.model_validate(record["schema"])
    table = _as_columns(raw, schema)
    names = label_columns(schema, table)
    if not all(name in table for name in names):
        return None
    known = ~np.any([missing(table[name]) for name in names], axis=0)
    if not known.any():
        return None
    own = {name: table[name][known] for name in names}
    if record["objective"] == "classification":
        cells = as_texts(own[names[0]])
        return known_labels(cells, record["classes"], schema.rename_label), known
    told = schema.model_copy(update={"objective": record["objective"]})
    return find_targets({"": own}, told).y[""], known


def sites_in(record: Mapping[str, Any], raw: Any) -> list[str]:
    """The sites that a column of raw rows names, if there is such a column."""
    schema = TableSchema.model_validate(record["schema"])
    table = _as_columns(raw, schema)
    names = (schema.domain, "site") if schema.domain == "domain" else (schema.domain,)
    found = next((table[name] for name in names if name in table), None)
    return [] if found is None else sorted({v for v in as_texts(found).tolist() if v is not None})


def _as_columns(raw: Any, schema: TableSchema) -> dict[str, Array]:
    """All columns of a file, a DataFrame or rows as the readers of files give them."""
    if isinstance(raw, str | Path):
        return read_table(Path(raw), schema).columns
    if hasattr(raw, "isna"):
        cells = raw.astype(object).where(~raw.isna(), None).to_dict("list")
    else:
        names = dict.fromkeys(name for row in raw for name in row)
        cells = {name: [row.get(name) for row in raw] for name in names}
    words = {
        str(name).strip(): [str(v) if isinstance(v, bool | np.bool_) else v for v in found]
        for name, found in cells.items()
    }
    return {name: from_values(found, schema) for name, found in words.items()}


def _preparation(record: Mapping[str, Any], site: str | None, reference: Any) -> TablePreparation:
    known = record["sites"]
    if record["statistics"] == "federated" or (site is not None and site in known):
        return preparation_of(record, str(site))
    if reference is None:
        whose = "no site is named" if site is None else f"{site!r} has none"
        raise DataError(
            f"the data were prepared with each site's own statistics, and {whose}; name one of "
            f"{', '.join(known)}, or give rows of the new site as reference",
            "site=ID",
        )
    schema = TableSchema.model_validate(record["schema"])
    agreed = agreed_of(record)
    return agreed.fit(agreed.count(columns_of(reference, agreed, schema)), schema)


def columns_of(raw: Any, preparation: TablePreparation, schema: TableSchema) -> dict[str, Array]:
    """Columns as the readers of files give them: numbers, or texts with None where one misses."""
    if isinstance(raw, str | Path):
        named = [p.name for p in preparation.plans if isinstance(p, CategoryPlan) and not p.size]
        return read_table(Path(raw), schema, named).columns
    if hasattr(raw, "columns") and hasattr(raw, "isna"):
        return _of_frame(raw, preparation, schema)
    if isinstance(raw, Sequence) and raw and all(isinstance(row, Mapping) for row in raw):
        names = dict.fromkeys(str(name).strip() for row in raw for name in row)
        rows = [{str(name).strip(): cell for name, cell in row.items()} for row in raw]
        cells = {name: [row.get(name) for row in rows] for name in names}
        return _of_cells(cells, preparation, schema)
    raise DataError(f"{type(raw).__name__} is no table; give {KINDS}")


def named_column(raw: Any, name: str) -> Any:
    """One column as it is spelt, such as the one that names the rows."""
    if isinstance(raw, str | Path):
        columns: Mapping[str, Any] = read_table(Path(raw), TableSchema(), [name]).columns
    elif hasattr(raw, "columns"):
        columns = raw
    else:
        columns = {name: [row[name] for row in raw]} if all(name in row for row in raw) else {}
    if name not in columns:
        raise DataError(f"the table has no column {name!r} to name its rows", "id=COLUMN")
    return columns[name]


def _of_frame(frame: Any, preparation: TablePreparation, schema: TableSchema) -> dict[str, Array]:
    if not len(frame):
        raise DataError("the DataFrame has no rows")
    lacks = frame.isna()
    cells = {
        str(name).strip(): [
            None if gone else value
            for value, gone in zip(frame[name].tolist(), lacks[name].tolist(), strict=True)
        ]
        for name in frame.columns
    }
    return _of_cells(cells, preparation, schema)


def _of_cells(
    cells: Mapping[str, list[Any]], preparation: TablePreparation, schema: TableSchema
) -> dict[str, Array]:
    """The columns that are needed; true and false as the files of the federation had them."""
    out = {}
    for plan in preparation.plans:
        if plan.name in cells:
            words = isinstance(plan, CategoryPlan) and not {"0", "1"} & set(plan.categories)
            found = [
                str(v) if words and isinstance(v, bool | np.bool_) else v for v in cells[plan.name]
            ]
            out[plan.name] = from_values(found, schema)
    return out
