"""What a site tells of its training rows under differential privacy: whole numbers with noise.

``federated`` and ``deploy.tables`` call :func:`release` instead of counting, if the schema has an
epsilon. The unit is one row of one site's table: with and without it, every answer is as probable
up to a factor of exp(epsilon). Nothing that was counted exactly may pass this module.

What is told, and how far one row moves it. The number of rows: by 1. Of a column of numbers, with u
from -1 to 1 for a value between its bounds (values beyond are clipped): missing cells, the sum of u
and of u^2; a row has either no value or one, so together by at most 2. Of a column of categories:
missing cells and rows of each declared category, one of which a row is at most: by 1. So one row
moves the whole answer by at most S = 1 + 2 (columns of numbers) + (columns of categories) in the L1
norm, and noise of scale S / epsilon on each number makes all of them together epsilon-private. That
is epsilon split evenly over the S. Sums are of whole multiples of 1 / ``GRID``, so that values and
noise are added as integers; all that follows is computed from these and from the schema.

What has no private answer here is not told: bins for a median (missing numbers get the mean),
names of categories (those of the schema, or hashed), roles of columns (those of the schema). Which
rows are training rows is decided row by row (``drawn.each_row``), since a draw over all rows would
let one row move many.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from fedshift.base.discrete_laplace import discrete_laplace
from fedshift.data.sources.tables.preparation import CategoryPlan, NumberPlan, TablePreparation
from fedshift.data.sources.tables.reading import Array, as_texts
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.statistics import (
    CategoryStatistics,
    NumberStatistics,
    Statistics,
)

GRID = 1 << 32  # steps from 0 to 1; sums of 2^30 rows fit 64 bits


def moved(plans: TablePreparation) -> int:
    """By how much one row moves the answer at most: S of the module's docstring."""
    each = {NumberPlan: 2, CategoryPlan: 1}
    return 1 + sum(each.get(type(plan), 0) for plan in plans.plans)


def release(
    plans: TablePreparation, columns: Mapping[str, Array], schema: TableSchema
) -> dict[str, Statistics]:
    """Statistics of one site's training rows, by column, with noise; texts have none."""
    if schema.epsilon is None:
        raise ValueError("statistics are released under an epsilon")
    scale = moved(plans) / Fraction(schema.epsilon)
    present = {p.name: columns[p.name] for p in plans.plans}
    rows = max((len(column) for column in present.values()), default=0)
    told = rows + discrete_laplace(scale)
    out: dict[str, Statistics] = {}
    for plan in plans.plans:
        if isinstance(plan, NumberPlan):
            values = plan.values(present[plan.name])
            out[plan.name] = _numbers(values, told, schema.bounds_of(plan.name), scale)
        elif isinstance(plan, CategoryPlan):
            declared = CategoryPlan(plan.name, categories=schema.categories.get(plan.name, ()))
            out[plan.name] = _categories(as_texts(present[plan.name]), told, declared, scale)
    return out


def _numbers(
    values: Array, rows: int, bounds: tuple[float, float], scale: Fraction
) -> NumberStatistics:
    low, high = bounds
    centre, half = (low + high) / 2, (high - low) / 2
    found = values[~np.isnan(values)]
    u = np.clip((np.clip(found, low, high) - centre) / half, -1, 1)
    missing = len(values) - len(found) + discrete_laplace(scale)
    first, second = (_summed(part, scale) for part in (u, u * u))
    present = rows - missing
    total = half * first + centre * present
    squares = half**2 * second + 2 * centre * half * first + centre**2 * present
    return NumberStatistics(rows, missing, total, squares)


def _summed(u: Array, scale: Fraction) -> float:
    """The sum of numbers between -1 and 1, each a whole number of grid steps, with noise."""
    steps = int(np.rint(u * GRID).astype(np.int64).sum())
    return (steps + discrete_laplace(scale * GRID)) / GRID


def _categories(
    cells: Array, rows: int, declared: CategoryPlan, scale: Fraction
) -> CategoryStatistics:
    lacks = sum(cell is None for cell in cells.tolist())
    counts = declared.tally(cells)
    return CategoryStatistics(
        rows,
        lacks + discrete_laplace(scale),
        {name: count + discrete_laplace(scale) for name, count in counts.items()},
    )
