"""Write what is generated in docs/reproduction.md: the list of recipes, and tables that were run.

    python scripts/reproduction_page.py            from results/claims.jsonl
    python scripts/reproduction_page.py --check    exit code 1 if the page has other tables

The page's sentences are written by hand; what is generated stands between two comments. Neither
data nor runs are needed: the results file says which runs belong to a recipe.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

from fedshift.claims.store import Results
from fedshift.core.scenario import Scale
from fedshift.recipes.formats import markdown, plain
from fedshift.recipes.plan import kept_plan, scenarios_of
from fedshift.recipes.read import find_recipes
from fedshift.recipes.recipe import Recipe
from fedshift.recipes.table import FilledRecipe, fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction.md"
BLOCK = re.compile(r"(<!-- table -->\n).*(<!-- end of table -->)", flags=re.DOTALL)
SCALES: tuple[Scale, ...] = get_args(Scale)


def page(text: str, recipes: list[Recipe], results: Results) -> str:
    """The page with the list and the tables as the results have them."""
    made = {recipe.name: filled(recipe, results) for recipe in recipes}
    lines = ["| recipe | in the paper | data | run |", "|---|---|---|---|"]
    for recipe in recipes:
        told = ", ".join(run_of(one) for one in made[recipe.name]) or "not run yet"
        cells = (f"`{recipe.name}`", plain(recipe.caption), ", ".join(data_of(recipe)), told)
        lines.append(f"| {' | '.join(cells)} |")
    tables = [markdown(one) for own in made.values() for one in own]
    block = "\n".join(["\n".join(lines) + "\n", *tables])
    return BLOCK.sub(lambda found: f"{found[1]}\n{block}\n{found[2]}", text)


def filled(recipe: Recipe, results: Results) -> list[FilledRecipe]:
    """The recipe at every scale at which something has been run."""
    found = [fill(kept_plan(recipe, scale, results), results.rows) for scale in SCALES]
    return [one for one in found if one.finished]


def run_of(one: FilledRecipe) -> str:
    """How much of a recipe has been run at a scale."""
    rows = [r for r in one.recipe.rows if r.method]
    done = [r for r in rows if any(one.cells[r.name, c.name].runs for c in one.recipe.column)]
    return f"{one.scale}: {len(done)} of {len(rows)} rows, up to {one.finished} seeds"


def data_of(recipe: Recipe) -> list[str]:
    """Names of the datasets that a recipe needs."""
    found = scenarios_of(recipe, "laptop").values()
    return sorted({s.data for s in found if not isinstance(s, str)})


def main(check: bool) -> int:
    """Write, or compare."""
    old = PAGE.read_text()
    new = page(old, find_recipes(["all"]), Results.open(ROOT / "results" / "claims.jsonl"))
    if check:
        return int(old != new)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
