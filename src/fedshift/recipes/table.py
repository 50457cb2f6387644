"""A recipe's cells with the paper's numbers and ours: means over seeds, intervals, and n.

``fedshift reproduce`` and the documentation fill tables here; ``recipes.formats`` writes them.
Every cell of the paper is there, also those that were not or cannot be run, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from fedshift.claims.store import Row, score_of
from fedshift.core.registry import SCENARIOS
from fedshift.evaluate.metrics import rounds_to
from fedshift.recipes.plan import RecipePlan, Runs
from fedshift.recipes.recipe import (
    OF_THE_RUN,
    PER_ROUND,
    Recipe,
    RecipeColumn,
    RecipeRow,
    protocol_of,
)
from fedshift.report.intervals import seed_interval

DASH = "\N{EN DASH}"  # not in the paper, or not run
CROSS = "\N{MULTIPLICATION SIGN}"  # cannot be made; the legend says why


@dataclass(frozen=True)
class SideBySide:
    """One cell: the paper's number and ours, seed by seed; ``why`` there is none of ours."""

    paper: float | None
    spread: float | None
    ours: tuple[float, ...]
    runs: int  # that are finished; fewer numbers than runs if some never reach a threshold
    why: str = ""

    @property
    def mean(self) -> float:
        """Our mean over seeds; NaN without any."""
        return fmean(self.ours) if self.ours else math.nan

    @property
    def half(self) -> float:
        """Half-width of the 95 % interval over seeds; NaN for fewer than two."""
        return seed_interval(self.ours)

    @property
    def published(self) -> str:
        """The paper's number as text."""
        if self.paper is None:
            return DASH
        return f"{self.paper:g}" + ("" if self.spread is None else f" ± {self.spread:g}")

    @property
    def measured(self) -> str:
        """Our number as text; the legend has the reason of a cross."""
        if self.why:
            return CROSS
        if not self.ours:
            return "not reached" if self.runs else DASH
        half = "" if math.isnan(self.half) else f" ± {shown(self.half)}"
        return f"{shown(self.mean)}{half}"


def shown(x: float) -> str:
    """A number of about four digits."""
    return f"{x:.2f}" if abs(x) < 1000 else f"{x:.4g}"


@dataclass(frozen=True)
class FilledRecipe:
    """A recipe at a scale with its cells by row and column."""

    recipe: Recipe
    scale: str
    cells: Mapping[tuple[str, str], SideBySide]

    @property
    def finished(self) -> int:
        """Most finished runs behind a cell: 0 if nothing has been run."""
        return max((cell.runs for cell in self.cells.values()), default=0)

    @property
    def reasons(self) -> dict[str, str]:
        """Why cells have no number of ours: the reason, and the rows or columns it is about."""
        by: dict[str, list[tuple[str, str]]] = {}
        for place, cell in self.cells.items():
            if cell.why:
                by.setdefault(cell.why, []).append(place)
        return {why: self._places(places) for why, places in by.items()}

    def _places(self, places: list[tuple[str, str]]) -> str:
        rows, columns = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
        if len(rows) == len(self.recipe.rows):
            return ", ".join(columns)
        if len(columns) == len(self.recipe.column):
            return ", ".join(rows)
        return f"{', '.join(rows)} in {', '.join(columns)}"

    @property
    def caption(self) -> str:
        """What must stand with the numbers: scale, n, interval, protocol, rule and budget."""
        recipe = self.recipe
        counts = sorted({cell.runs for cell in self.cells.values() if cell.runs})
        seeds = "nothing has been run"
        if counts:
            n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            seeds = f"n = {n} seeds, ± 95 % interval over seeds by Student's t"
            seeds = "n = 1 seed, so without an interval" if counts == [1] else seeds
        paper = f"; the paper's ± is {recipe.spread}" if recipe.spread else ""
        return (
            f"{recipe.paper}: {recipe.caption} Paper and ours; ours at scale {self._scale()}, "
            f"{seeds}{paper}; protocol {self._protocols()}; reported round: {RULES[recipe.rule]}; "
            f"methods have the same {recipe.equal}."
        )

    def _scale(self) -> str:
        """The scale, and which scenarios come in one only."""
        known = SCENARIOS.entries()
        used = dict.fromkeys(column.scenario for column in self.recipe.column if column.scenario)
        alone = [name for name in used if name not in known or "scale" not in known[name].options]
        return f"{self.scale} ({', '.join(alone)}: comes in one)" if alone else self.scale

    def _protocols(self) -> str:
        """The protocol, or which rows and columns have which if there are several."""
        own = {
            (row.name, column.name): protocol_of(self.recipe, row, column)
            for row in self.recipe.rows
            for column in self.recipe.column
            if not column.mean_of
        }
        kinds = list(dict.fromkeys(own.values()))
        if len(kinds) == 1:
            return kinds[0]
        return "; ".join(
            f"{kind} of {self._places([place for place, one in own.items() if one == kind])}"
            for kind in kinds
        )

    @property
    def legend(self) -> list[str]:
        """What the marks mean, with every reason, and the recipe's note."""
        lines = [f"{DASH} is not in the paper, or not run."]
        lines += [f"{CROSS} {place}: {why}" for why, place in self.reasons.items()]
        return lines + ([self.recipe.note] if self.recipe.note else [])


RULES = {
    "validation": "chosen on validation data",
    "last": "the last",
    "last5": "the mean of the last five scored ones",
    "oracle": "the best on test data (an oracle)",
}


def fill(made: RecipePlan, rows: Mapping[str, Row]) -> FilledRecipe:
    """Put the finished runs of a plan into the recipe's cells."""
    recipe, cells = made.recipe, dict[tuple[str, str], SideBySide]()
    for row in recipe.rows:
        for number, column in enumerate(recipe.column):
            place = row.name, column.name
            values, count = _ours(made, row, column, rows)
            reason = row.why or column.why or ("" if count else _reason(made, row, column))
            paper, spread = (_number(row, kind, number) for kind in ("published", "spread"))
            cells[place] = SideBySide(paper, spread, values, count, reason)
    return FilledRecipe(recipe, made.scale, cells)


def _number(row: RecipeRow, kind: str, number: int) -> float | None:
    own = getattr(row, kind)
    found = own[number] if number < len(own) else "-"
    return None if found == "-" else float(found)


def _reason(made: RecipePlan, row: RecipeRow, column: RecipeColumn) -> str:
    """Why a cell without a finished run cannot be made; empty if it can."""
    names = column.mean_of or (column.name,)
    return next((w for n in names if (w := made.why.get((row.name, n), ""))), "")


def _ours(
    made: RecipePlan, row: RecipeRow, column: RecipeColumn, rows: Mapping[str, Row]
) -> tuple[tuple[float, ...], int]:
    """Our numbers of a cell, seed by seed, and how many runs they are from."""
    if column.mean_of:
        return _means(made, row, column, rows)
    finished = _finished(made.runs.get((row.name, column.name), {}), rows)
    protocol = protocol_of(made.recipe, row, column)
    found = [number_of(one, column, made.recipe.rule, protocol) for one in finished.values()]
    return tuple(x for x in found if x is not None), len(finished)


def _means(
    made: RecipePlan, row: RecipeRow, column: RecipeColumn, rows: Mapping[str, Row]
) -> tuple[tuple[float, ...], int]:
    """The mean over other columns, of the seeds that are finished in all of them."""
    parts = []
    for part in (c for c in made.recipe.column if c.name in column.mean_of):
        protocol = protocol_of(made.recipe, row, part)
        own = _finished(made.runs.get((row.name, part.name), {}), rows)
        found = {s: number_of(one, part, made.recipe.rule, protocol) for s, one in own.items()}
        parts.append({seed: x for seed, x in found.items() if x is not None})
    seeds = [seed for seed in parts[0] if all(seed in part for part in parts)]
    return tuple(fmean(part[seed] for part in parts) for seed in seeds), len(seeds)


def _finished(runs: Runs, rows: Mapping[str, Row]) -> dict[int, Row]:
    return {seed: rows[name] for seed, name in runs.items() if name in rows}


def number_of(row: Row, column: RecipeColumn, rule: str, protocol: str) -> float | None:
    """The number of a column in a finished run; None if the run has none."""
    found: float | None
    if column.metric in OF_THE_RUN:
        found = float(row[column.metric])
    elif column.metric in PER_ROUND:
        found = row[column.metric.removesuffix("_per_round")] / row["rounds"]
    elif column.threshold is not None:
        found = rounds_to(column.threshold, row["curves"].get(protocol, []))
    else:
        found = score_of(row, column.metric, rule, protocol)
    return None if found is None else found * column.factor
