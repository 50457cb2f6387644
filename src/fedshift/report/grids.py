"""The tables of a page, as rows of text and of numbers that can be sorted.

``report.html`` shows them. All numbers come from ``report.tables`` and the runs; what a cell is
sorted by is the number itself, not the text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from fedshift.base.files import read_json
from fedshift.core.config import environment
from fedshift.report import further
from fedshift.report.cells import Cell
from fedshift.report.results import Choice, Comparison, RunResult, cell_of
from fedshift.report.tables import (
    NONE,
    Summary,
    TableRow,
    choice_name,
    leaders,
    measure_name,
    measures_of,
    per_round,
    runs_of,
    size,
)

SINGLE = 20  # methods with one seed up to which further measures get the bootstrap's intervals


@dataclass(frozen=True)
class Score:
    """A table cell as the page shows it; ``value`` is what it is sorted by, None if not known."""

    mean: str
    spread: str = ""
    best: bool = False
    mark: str = ""
    value: float | None = None

    @classmethod
    def of(cls, cell: Cell, *, best: bool = False, mark: str = "") -> Score:
        """Split a cell into mean and interval, so that the interval can be printed smaller."""
        mean, _, spread = cell.shown.partition(" ± ")
        return cls(mean, spread, best, mark, _known(cell.mean))


@dataclass(frozen=True)
class Grid:
    """A table of the page; the first cell of each line is its heading.

    ``methods`` are the places of the lines' methods in the comparison, for lines that have one.
    """

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str | Score]]
    oracle: bool = False
    methods: Sequence[int] = ()


def _known(value: float) -> float | None:
    return value if isfinite(value) else None


def _amount(count: float) -> Score:
    """A number of bytes that sorts by its value."""
    return Score(size(count), value=count)


def overview(comparison: Comparison, summary: Summary) -> Grid:
    """The table of methods x protocols; the last column says how many seeds a line is over."""
    found = summary.lines(lambda cell, mark, best: Score.of(cell, best=best, mark=mark))
    lines: list[list[str | Score]] = [
        [name, *cells, _amount(row.up), _amount(row.down), Score(str(row.seeds), value=row.seeds)]
        for (name, cells, _), row in zip(found, summary.rows, strict=True)
    ]
    heads = (*summary.headings[: 1 + len(summary.keys)], "up/round", "down/round", "n (seeds)")
    places = places_of(comparison, [row.method for row in summary.rows])
    return Grid("", heads, lines, "ORACLE" in summary.chosen, places)


def places_of(comparison: Comparison, methods: Sequence[str]) -> list[int]:
    """Where methods stand in the comparison; their looks follow from it."""
    known = {name: i for i, name in enumerate(comparison.methods)}
    return [known[name] for name in methods]


def apart(comparison: Comparison, summary: Summary) -> Grid | None:
    """The differences to a method; None if none is asked for."""
    if not summary.apart:
        return None
    others = [i for i, row in enumerate(summary.rows) if row.method != summary.against]
    means = [[_known(cells[i].mean) for cells in summary.differences.values()] for i in others]
    lines: list[list[str | Score]] = [
        [line[0], *(Score(text, value=v) for text, v in zip(line[1:], own, strict=True))]
        for line, own in zip(summary.apart, means, strict=True)
    ]
    title = f"difference to {summary.against}"
    places = places_of(comparison, [line[0] for line in summary.apart])
    return Grid(title, summary.apart_headings, lines, methods=places)


def per_domain(comparison: Comparison, found: Sequence[TableRow], choice: Choice) -> Grid:
    """One line per method: each domain's accuracy, then AVG, STD, ALL and worst."""
    names = list(found[0].domains)
    measures = measures_of(names)
    columns = [_column(found, [row.domains[name] for row in found]) for name in names]
    columns += [_measure(found, measure) for measure in measures]
    rules = dict.fromkeys(rule for row in found for rule in row.rules)
    title = " / ".join(choice_name(choice, rule) for rule in rules)
    lines: list[list[str | Score]] = [
        [r.method + r.mark, *(column[i] for column in columns)] for i, r in enumerate(found)
    ]
    heads = ("method", *names, *map(measure_name, measures))
    places = places_of(comparison, [row.method for row in found])
    return Grid(title, heads, lines, "oracle" in rules, places)


def _measure(found: Sequence[TableRow], measure: str) -> list[Score]:
    """A column of AVG, STD, ALL or worst; in STD no value is marked as best."""
    cells: list[Cell] = [getattr(row, measure) for row in found]
    return [Score.of(c) for c in cells] if measure == "std" else _column(found, cells)


def _column(found: Sequence[TableRow], cells: Sequence[Cell]) -> list[Score]:
    """One column; a value whose lead is beyond the interval is bold."""
    best = leaders(cells, [row.oracle for row in found])
    return [Score.of(c, best=b) for c, b in zip(cells, best, strict=True)]


def further_measures(comparison: Comparison, scenario: str, name: str) -> Grid | None:
    """One line per method: every measure beside the main one, mean over domains and seeds."""
    runs = runs_of(comparison, scenario)
    measures = further.measures_beside(runs[0].config.scenario.task)
    methods = [m for m in comparison.methods if comparison.of(m, scenario)]
    sure = sum(len(comparison.of(m, scenario)) == 1 for m in methods) <= SINGLE
    lines: list[list[str | Score]] = [
        [m, *(_further(k, comparison.of(m, scenario), name, sure) for k in measures)]
        for m in methods
    ]
    known = any(isinstance(cell, Score) and cell.mean != NONE for line in lines for cell in line)
    heads = ("method", *map(further.title, measures))
    if not known:
        return None
    title = "other measures, selected rounds"
    return Grid(title, heads, lines, methods=places_of(comparison, methods))


def _further(measure: str, runs: Sequence[RunResult], protocol: str, sure: bool) -> Score:
    """A measure beside the main one, in its own precision; its interval if it is ``sure``."""
    if len(runs) == 1 and not sure:
        found = runs[0].outcome(protocol)
        mean = found.metrics.value(measure) if found else nan
        return Score(further.number(measure, mean), value=_known(mean))
    cell = cell_of(runs, protocol, measure)
    spread = "" if isnan(cell.interval) else further.number(measure, cell.interval)
    return Score(further.number(measure, cell.mean), spread, value=_known(cell.mean))


def costs(comparison: Comparison, summary: Summary) -> Grid:
    """Parameters, bytes and time per method, means over seeds; time also relative to FedAvg's."""
    per_method = [comparison.of(row.method, summary.scenario) for row in summary.rows]
    times = [fmean(map(seconds_per_round, runs)) for runs in per_method]
    methods = [row.method for row in summary.rows]
    plain = times[methods.index("fedavg")] if "fedavg" in methods else None
    lines: list[list[str | Score]] = []
    for row, runs, time in zip(summary.rows, per_method, times, strict=True):
        counts = [
            [per_round(r), r.summary["bytes"]["train"], r.summary["bytes"]["total"]] for r in runs
        ]
        amounts = [
            _amount(fmean(count[kind][way] for count in counts))
            for kind in range(3)
            for way in ("up", "down")
        ]
        parameters = runs[0].summary.get("parameters", 0)
        taken = [Score(f"{time:.3g} s", value=time)]
        taken += [Score(f"{time / plain:.2f}", value=time / plain)] if plain else []
        held = Score(f"{parameters:,}", value=parameters)
        lines.append([row.method, held, *amounts, *taken])
    heads = ["method", "parameters", "up/round", "down/round", "up, training", "down, training"]
    heads += ["up, with scoring", "down, with scoring", "time/round"]
    heads += ["time, FedAvg = 1"] if plain else []
    return Grid("", heads, lines, methods=places_of(comparison, methods))


def seconds_per_round(result: RunResult) -> float:
    """Wall-clock time of a training round, scoring left out; the run's own clock."""
    found = [row["seconds"] for row in result.history if "seconds" in row]
    return fmean(found) if found else result.summary["seconds"] / result.summary["rounds"]


def facts(runs: Sequence[RunResult]) -> dict[str, str]:
    """The main settings of the scenario; values that differ between runs are joined by "or"."""
    columns: dict[str, Callable[[RunResult], Any]] = {
        "domains": lambda r: ", ".join(r.config.scenario.domains),
        "unseen domain": lambda r: r.config.scenario.unseen or NONE,
        "clients": lambda r: r.summary["clients"],
        "rounds": lambda r: r.summary["rounds"],
        "backbone": lambda r: r.config.scenario.backbone,
        "scale": lambda r: r.config.scenario.scale or NONE,
        "seeds": lambda r: r.config.seed,
    }
    joint = {"seeds": ", "}
    return {
        name: joint.get(name, " or ").join(dict.fromkeys(str(value(r)) for r in runs))
        for name, value in columns.items()
    }


def run_list(comparison: Comparison, runs: Sequence[RunResult], folder: Path) -> Grid:
    """Every run with its directory."""
    lines: list[list[str | Score]] = [
        [
            r.label,
            Score(str(r.config.seed), value=r.config.seed),
            Score(str(r.summary["rounds"]), value=r.summary["rounds"]),
            _place(r, folder),
        ]
        for r in runs
    ]
    places = places_of(comparison, [r.label for r in runs])
    return Grid("", ("method", "seed", "rounds", "run directory"), lines, methods=places)


def _place(result: RunResult, folder: Path) -> str:
    """The run directory as a path relative to the page's folder."""
    if result.path is None:
        return f"{result.config.name} (kept in memory)"
    return Path(os.path.relpath(result.path, folder)).as_posix()


def environments(runs: Sequence[RunResult]) -> Grid:
    """Package versions of the runs; equal sets of versions share a line."""
    found: dict[tuple[tuple[str, str], ...], int] = {}
    for run in runs:
        key = tuple((k, str(v)) for k, v in _environment(run).items())
        found[key] = found.get(key, 0) + 1
    heads = list(dict.fromkeys(k for key in found for k, _ in key))
    lines = [[str(n), *(dict(key).get(h, NONE) for h in heads)] for key, n in found.items()]
    return Grid("", ["runs", *heads], lines)


def _environment(run: RunResult) -> dict[str, Any]:
    """Versions as recorded; a run kept in memory was made by this process."""
    if run.path is None:
        return environment()
    recorded: dict[str, Any] = read_json(run.path / "config.json").get("environment", {})
    return recorded
