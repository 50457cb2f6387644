"""From a recipe to runs: which run fills which cell, what is left to make, and what cannot be made.

``fedshift reproduce`` plans here before it runs, and tables read the same plan from the results
file, where neither data nor methods are needed. A run has the identity that a claim's has, and is
looked for in the same file, so none is made twice. What cannot be made keeps its reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedshift.base.errors import ConfigError, DataError
from fedshift.claims.run import matched_jobs
from fedshift.claims.store import Results
from fedshift.core.analysis import ANALYSES
from fedshift.core.config import named_options
from fedshift.core.registry import SCENARIOS, build
from fedshift.core.scenario import Scale, Scenario
from fedshift.experiment.compare import Job
from fedshift.experiment.scenario import scenario_from
from fedshift.recipes.recipe import Recipe, RecipeColumn, RecipeRow, changes_of

Runs = dict[int, str]  # run names by seed


@dataclass
class RecipePlan:
    """The runs of a recipe at a scale: names by row and column, jobs to make, and reasons.

    ``why`` has cells that cannot be made at this scale or here, and what is missing.
    """

    recipe: Recipe
    scale: Scale
    runs: dict[tuple[str, str], Runs] = field(default_factory=dict)
    why: dict[tuple[str, str], str] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the results file calls it."""
        return f"recipe {self.recipe.name} at {self.scale}"


def cell_scenario(recipe: Recipe, row: RecipeRow, column: RecipeColumn, scale: Scale) -> Scenario:
    """The scenario of a cell: the column's at this scale if it comes in several, and changed."""
    name = column.scenario or ""
    known = SCENARIOS.entries().get(name)
    own = scale if known and "scale" in known.options else None
    scenario = scenario_from(name, own, None, changes_of(recipe, row, column, scale))
    known_here = ANALYSES.entries()
    further = [n for n in recipe.records if n in known_here and n not in scenario.analyses]
    return scenario.change(analyses=(*scenario.analyses, *further)) if further else scenario


def scenarios_of(recipe: Recipe, scale: Scale) -> dict[tuple[str, str], Scenario | str]:
    """The scenario of every cell that is made, or why there is none at this scale.

    Only a scale that a scenario does not come in is a reason; any other problem is an error.
    """
    out: dict[tuple[str, str], Scenario | str] = {}
    kept: dict[str, Scenario | str] = {}
    for row, column, _ in recipe.cells():
        key = json.dumps([column.scenario, column.set, column.smaller, row.set])
        if key not in kept:
            kept[key] = _scenario_or_reason(recipe, row, column, scale)
        out[row.name, column.name] = kept[key]
    return out


def _scenario_or_reason(
    recipe: Recipe, row: RecipeRow, column: RecipeColumn, scale: Scale
) -> Scenario | str:
    try:
        return cell_scenario(recipe, row, column, scale)
    except ConfigError as error:
        if scale == "laptop":
            raise
        cell_scenario(recipe, row, column, "laptop")  # raises what is wrong with the recipe itself
        return str(error)


def plan_recipe(
    recipe: Recipe,
    scale: Scale,
    out: Path,
    *,
    rows: Sequence[RecipeRow] | None = None,
    seeds: int | None = None,
) -> RecipePlan:
    """Plan the runs of a recipe; data are loaded, since a run's name depends on them."""
    made = RecipePlan(recipe, scale)
    chosen = {row.name for row in (recipe.rows if rows is None else rows)}
    scenarios = scenarios_of(recipe, scale)
    for method in recipe.methods:
        build(method)
    groups: dict[str, list[RecipeCell]] = {}
    for row, column, method in recipe.cells():
        scenario = scenarios[row.name, column.name]
        if isinstance(scenario, str):
            made.why[row.name, column.name] = scenario
        else:
            cell = RecipeCell((row.name, column.name), method, row.name in chosen)
            groups.setdefault(scenario.model_dump_json(), []).append(cell)
    for text, cells in groups.items():
        _fill(made, Scenario.model_validate_json(text), cells, seeds or recipe.seeds, out)
    return made


@dataclass(frozen=True)
class RecipeCell:
    """A cell to plan: its row and column, its method, and whether it is to be made now."""

    place: tuple[str, str]
    method: str
    chosen: bool


def _fill(
    made: RecipePlan, scenario: Scenario, cells: Sequence[RecipeCell], seeds: int, out: Path
) -> None:
    """Add the runs of one scenario to a plan; without its data, the reason."""
    among = list(dict.fromkeys(cell.method for cell in cells))
    own = list(dict.fromkeys(cell.method for cell in cells if cell.chosen))
    if not own:
        return
    try:
        jobs = matched_jobs(own, among, scenario, made.recipe.equal, seeds, out)
    except DataError as error:
        made.why |= {cell.place: str(error) for cell in cells}
        return
    made.jobs |= {job.config.name: job for job in jobs.values()}
    for cell in (cell for cell in cells if cell.chosen):
        found = {seed: jobs[cell.method, seed].config.name for seed in range(seeds)}
        made.runs[cell.place] = found


def left_to_run(plans: Sequence[RecipePlan], results: Results) -> list[Job]:
    """Jobs of all plans that are not in the results, each once, in the order to make them.

    Every cell's first seed comes before any second; of one seed FedAvg and the paper's own method
    come first: however long there is time, what the paper compares is complete.
    """
    jobs: dict[str, tuple[int, bool]] = {}
    found: dict[str, Job] = {}
    for one in plans:
        paper = one.recipe.name.partition("/")[0]
        for name, job in one.jobs.items():
            if name not in results.rows:
                method = job.config.method
                later = method != "fedavg" and not method.startswith(paper)
                jobs.setdefault(name, (job.config.seed, later))
                found[name] = job
    return [found[name] for name in sorted(jobs, key=lambda n: jobs[n])]


def digest_of(recipe: Recipe, scale: Scale) -> str:
    """Changes with what is run for a recipe: runs that were planned before count no more."""
    cells = {
        f"{row}/{column}": scenario if isinstance(scenario, str) else named_options(scenario)
        for (row, column), scenario in scenarios_of(recipe, scale).items()
    }
    methods = {f"{row.name}/{column.name}": method for row, column, method in recipe.cells()}
    text = json.dumps([recipe.equal, methods, cells], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def keep(made: RecipePlan, results: Results) -> None:
    """Write a plan's runs to the results file, beside those that were planned for it before."""
    before = kept_plan(made.recipe, made.scale, results)
    sides = {_label(cell): dict(runs) for cell, runs in before.runs.items()}
    for cell, runs in made.runs.items():
        sides.setdefault(_label(cell), {}).update(runs)
    if sides:
        results.keep_plan(made.name, digest_of(made.recipe, made.scale), sides)


def kept_plan(recipe: Recipe, scale: Scale, results: Results) -> RecipePlan:
    """A recipe's runs as the results file has them; none if the recipe has changed since."""
    made = RecipePlan(recipe, scale)
    held = results.plans.get(made.name)
    if held is not None and held["digest"] == digest_of(recipe, scale):
        for row in recipe.rows:
            for column in recipe.column:
                if runs := held.get(_label((row.name, column.name))):
                    made.runs[row.name, column.name] = {int(s): name for s, name in runs.items()}
    return made


def _label(cell: tuple[str, str]) -> str:
    return "\t".join(cell)
