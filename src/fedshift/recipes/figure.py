"""A recipe's figure: its analysis of the finished runs, drawn and written beside them.

``fedshift reproduce`` calls it after the table. The analyses are those of ``fedshift.analyse``, of
which one function is used; without that package, or without the run directories, accuracy over
rounds comes from the results file. Runs of different scenarios never enter one picture.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedshift.base.errors import FedshiftError
from fedshift.base.files import write_bytes
from fedshift.claims.store import Row
from fedshift.recipes.plan import RecipePlan
from fedshift.recipes.recipe import protocol_of
from fedshift.report.load import load_run
from fedshift.report.results import RunResult

ANALYSES = "fedshift.analyse"


def draw(made: RecipePlan, rows: Mapping[str, Row], out: Path) -> list[str]:
    """Make a recipe's figure from its finished runs; lines that say what was found and written."""
    recipe, folder = made.recipe, out / "figures"
    told: list[str] = []
    if not recipe.analysis:
        return told
    for title, names in _groups(made, rows).items():
        stem = folder / re.sub(r"[^A-Za-z0-9]+", "-", f"{recipe.name}-{made.scale}-{title}")
        here = [out / name for name in names if (out / name / "summary.json").exists()]
        try:
            if find_spec(ANALYSES) and here:
                told += _analysed(made, [load_run(path) for path in here], title, stem)
            else:
                told += _curves(made, rows, names, stem)
        except FedshiftError as error:
            told.append(f"{title}: no figure ({error})")
    return told


def _groups(made: RecipePlan, rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """Finished runs by scenario, under the name of the first column that has it."""
    out: dict[str, list[str]] = {}
    seen: dict[frozenset[str], str] = {}
    for column in made.recipe.column:
        cells = [runs for (_, name), runs in made.runs.items() if name == column.name]
        names = [n for runs in cells for n in runs.values() if n in rows]
        if names and frozenset(names) not in seen:
            seen[frozenset(names)] = column.name
            out[column.name] = list(dict.fromkeys(names))
    return out


def _analysed(made: RecipePlan, results: Sequence[RunResult], title: str, stem: Path) -> list[str]:
    """Analyse the runs of one scenario; write the picture and the table."""
    module: Any = import_module(ANALYSES)
    options = dict(made.recipe.options)
    named = [row.protocol for row in made.recipe.rows]
    named += [column.protocol for column in made.recipe.column]
    if "protocol" in module.options_of(made.recipe.analysis) and not any(named):  # one for all
        options.setdefault("protocol", made.recipe.protocol)
    found = module.analyse(made.recipe.analysis, results, **options)
    told = [f"{title}: {found.sentence}"]
    write_bytes(stem.with_suffix(".csv"), _sheet(found.table).encode())
    told.append(f"written: {stem.with_suffix('.csv')}")
    if found.figure is not None:
        found.figure.savefig(stem.with_suffix(".png"), dpi=150)
        told.append(f"written: {stem.with_suffix('.png')}")
    return told


def _curves(
    made: RecipePlan, rows: Mapping[str, Row], names: Sequence[str], stem: Path
) -> list[str]:
    """Accuracy over rounds as the results file has it, one line per run and round."""
    own = {run: place for place, runs in made.runs.items() for run in runs.values()}
    lines = []
    for name in names:
        row = next(r for r in made.recipe.rows if r.name == own[name][0])
        column = next(c for c in made.recipe.column if c.name == own[name][1])
        curve = rows[name]["curves"].get(protocol_of(made.recipe, row, column), [])
        first = {"row": row.name, "method": rows[name]["method"], "seed": rows[name]["seed"]}
        lines += [first | {"round": round_, "avg": value} for round_, value in curve]
    write_bytes(stem.with_suffix(".csv"), _sheet(lines).encode())
    return [f"accuracy over rounds, in place of {made.recipe.analysis}: {stem.with_suffix('.csv')}"]


def _sheet(table: Sequence[Mapping[str, Any]]) -> str:
    """A table as CSV; the columns are those of all its rows."""
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in table for name in row))
    sheet = csv.DictWriter(out, names, lineterminator="\n")
    sheet.writeheader()
    sheet.writerows(table)
    return out.getvalue()
