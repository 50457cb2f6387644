"""What a recipe would take, without training: runs, rounds, local steps, missing data, hours.

A dry run of ``fedshift reproduce`` prints it. Data are looked for but not prepared at full size:
rows are counted on the laptop scale's images, of which there are as many. A run's time is that of
its finished runs if there are any; else of its scenario's other methods; else one optimiser step of
the bare net on noise is timed and multiplied by the steps. The last is a lower bound, since scoring
and a method's further passes are not in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean

import torch
from torch.nn.functional import cross_entropy

from fedshift.base.errors import DataError
from fedshift.base.process import one_thread
from fedshift.claims.store import Results, Row
from fedshift.core.registry import BACKBONES, SCENARIOS, build
from fedshift.core.scenario import Scale, Scenario
from fedshift.data.catalogue import CATALOGUE
from fedshift.data.library.datasets import own_cards, variant_of
from fedshift.data.library.prepare import prepared
from fedshift.data.sources.discover import how_to_get, is_found
from fedshift.engine.federation import holdings, stored
from fedshift.recipes.plan import kept_plan, scenarios_of
from fedshift.recipes.recipe import Recipe, RecipeRow

SMALL = 64 * 64  # pixels up to which a whole batch is timed; of larger images a few


@dataclass(frozen=True)
class ForecastLine:
    """One method in one scenario: how many runs, how long each, and what is missing for them."""

    method: str
    scenario: str
    runs: int
    kept: int  # of them, in the results file
    rounds: int
    work: str  # local work of a visit
    clients: int
    steps: int  # local steps of a run, all clients together; 0 if that is not known
    seconds: float  # of one run; NaN if that is not known
    missing: str = ""
    what: str = field(default="", repr=False)  # the scenario, complete: recipes share runs

    @property
    def left(self) -> float:
        """Seconds of the runs that are left; NaN if that is not known."""
        return self.seconds * (self.runs - self.kept) if self.runs > self.kept else 0.0


def forecast(
    recipe: Recipe,
    scale: Scale,
    results: Results,
    *,
    rows: Sequence[RecipeRow] | None = None,
    seeds: int | None = None,
) -> tuple[list[ForecastLine], list[str]]:
    """A line per method and scenario; and what of the recipe cannot be made, with reasons."""
    for method in recipe.methods:
        build(method)
    wanted = {row.name for row in (recipe.rows if rows is None else rows)}
    scenarios = scenarios_of(recipe, scale)
    held = kept_plan(recipe, scale, results)
    cells: dict[tuple[str, str], set[str]] = {}
    told = _never(recipe, wanted)
    for row, column, method in recipe.cells():
        scenario = scenarios[row.name, column.name]
        if row.name not in wanted:
            continue
        if isinstance(scenario, str):
            told.append(scenario)
            continue
        found = held.runs.get((row.name, column.name), {}).values()
        cells.setdefault((scenario.model_dump_json(), method), set()).update(found)
    lines = []
    for (text, method), names in cells.items():
        near = {n for (t, _), own in cells.items() if t == text for n in own}
        own = _finished(names, results.rows)
        times = [_pace(row) for row in own or _finished(near, results.rows)]
        scenario = Scenario.model_validate_json(text)
        lines.append(_line(scenario, method, seeds or recipe.seeds, len(own), times))
    return lines, list(dict.fromkeys(told))


def together(lines: Sequence[ForecastLine]) -> list[ForecastLine]:
    """Lines of several recipes without the runs that they share: of equal ones the longest."""
    longest: dict[tuple[str, str], ForecastLine] = {}
    for line in sorted(lines, key=lambda line: line.runs):
        longest[line.what, line.method] = line
    return list(longest.values())


def _never(recipe: Recipe, wanted: set[str]) -> list[str]:
    """Rows and columns that are shown and not run."""
    rows = [f"{row.name}: {row.why}" for row in recipe.rows if row.why and row.name in wanted]
    return [*rows, *(f"{column.name}: {column.why}" for column in recipe.column if column.why)]


def _finished(names: set[str], rows: Mapping[str, Row]) -> list[Row]:
    return [rows[name] for name in names if name in rows]


def _pace(row: Row) -> float:
    """Seconds of a round of a finished run."""
    return float(row["seconds"]) / max(1, row["rounds"])


def _line(
    scenario: Scenario, method: str, seeds: int, kept: int, times: Sequence[float]
) -> ForecastLine:
    count, unit = (scenario.steps, "step") if scenario.steps else (scenario.epochs or 1, "epoch")
    work = f"{count} {unit}{'' if count == 1 else 's'} of {scenario.batch_size}"
    missing = missing_data(scenario)
    clients, steps, seconds = 0, 0.0, math.nan
    if not missing:
        counted = _counted(scenario)
        clients, steps = _steps(_sizes(counted), scenario)
        shape, classes = _inputs(counted, scenario.data_options.get("size"))
        seconds = scenario.rounds * steps * _step_seconds(_net(scenario), shape, classes)
    if times:
        seconds = scenario.rounds * fmean(times)
    total = round(scenario.rounds * steps)
    return ForecastLine(
        method,
        scenario.name,
        seeds,
        min(kept, seeds),
        scenario.rounds,
        work,
        clients,
        total,
        seconds,
        missing,
        scenario.model_dump_json(),
    )


def missing_data(scenario: Scenario) -> str:
    """What data the scenario lacks here, and how to get them; empty if none. Opens no file."""
    public = scenario.public if "public_set" in scenario.allow else None
    cards = dict(CATALOGUE) | own_cards()
    wanted = [(scenario.data, scenario.data_options), *([(public, {})] if public else [])]
    for name, options in wanted:
        card = cards.get(name)
        if card is None:  # made by a function of a plug-in, or embedded
            continue
        own = {key: value for key, value in options.items() if key != "encoder"}
        variant = variant_of(card, own)
        if variant.key not in prepared(card) and not is_found(card, variant):
            return f"{name}: {how_to_get(card, variant)}"
    return ""


def _counted(scenario: Scenario) -> str:
    """The same rows as small images, if the scenario comes in that scale."""
    known = SCENARIOS.entries().get(scenario.name)
    small = known.build(scale="laptop") if known and "scale" in known.options else scenario
    keep = {"data_options": small.data_options, "rounds": 1, "analyses": ()}
    same = scenario.change(**keep, backbone="linear", backbone_options={}, summary="", changed="")
    return same.model_dump_json()


@cache
def _sizes(text: str) -> tuple[int, ...]:
    """Training samples of each client with seed 0; empty if the data cannot be dealt out so."""
    try:
        counts = holdings(Scenario.model_validate_json(text), 0).counts
    except DataError:
        return ()
    return tuple(int(n) for n in counts.sum((1, 2)))


@cache
def _inputs(text: str, size: int | None) -> tuple[tuple[int, ...], int]:
    """Shape of an input at a size, and the number of classes."""
    domain = next(iter(stored(Scenario.model_validate_json(text)).values()))
    shape = tuple(domain.shape)
    images = len(shape) == 3 and size is not None
    return (shape[0], int(size), int(size)) if images and size else shape, len(domain.classes)


def _steps(sizes: Sequence[int], scenario: Scenario) -> tuple[int, float]:
    """Clients of a round, and their local steps together."""
    each = [
        scenario.steps or (scenario.epochs or 1) * math.ceil(size / scenario.batch_size)
        for size in sizes
    ]
    taking = min(scenario.cohort_size(len(each)), len(each)) if each else 0
    return taking, fmean(each) * taking if each else 0.0


Stepped = tuple[str, tuple[tuple[str, object], ...], int]


def _net(scenario: Scenario) -> Stepped:
    """What a step's time depends on: backbone, its options, batch size."""
    options = {k: v for k, v in scenario.backbone_options.items() if k != "pretrained"}
    return scenario.backbone, tuple(sorted(options.items())), scenario.batch_size


@cache
def _step_seconds(net: Stepped, shape: tuple[int, ...], classes: int) -> float:
    """Processor seconds of an optimiser step of the bare net on noise: the shorter of two more.

    Processor time, because a machine that is busy with other things would double it.
    """
    backbone, options, batch = net
    few = batch if math.prod(shape[1:]) <= SMALL else min(batch, 4)
    with one_thread(), torch.random.fork_rng():
        model = BACKBONES.get(backbone).build(shape, classes, **dict(options))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.rand(few, *shape), torch.arange(few) % classes
        times = []
        for _ in range(3):
            started = time.process_time()
            optimiser.zero_grad()
            cross_entropy(model(x).logits, y).backward()
            optimiser.step()
            times.append(time.process_time() - started)
    return min(times[1:]) * batch / few
