"""A comparison as one self-contained HTML page.

The commands ``compare`` and ``report`` write it. The page must never load anything from elsewhere,
and every name that comes from a user or a run is escaped by the template. A Content-Security-Policy
in the page tells the browser the same: no scripts, no loading.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedshift.base.errors import ConfigError
from fedshift.base.files import read_json, write_bytes
from fedshift.base.version import __version__
from fedshift.core.config import environment
from fedshift.report import further, optional
from fedshift.report.results import Cell, Choice, Comparison, RunResult, cell_of
from fedshift.report.tables import (
    CHOICES,
    NONE,
    Summary,
    TableRow,
    choice_name,
    domains_of,
    leaders,
    measure_name,
    measures_of,
    per_round,
    rows,
    runs_of,
    shared,
    size,
    summaries,
)

PROTOCOLS = {
    "personal": "Each client's own model on its own domain, after the round.",
    "personal-trained": "Each client's own model on its own domain, as it trained it: after its "
    "local training, before aggregation.",
    "global": "One model on every training domain.",
    "unseen": "One model on a domain that no client has.",
    "unseen-adapted": "The same after label-free adaptation to that domain; "
    "without a part that adapts it equals unseen.",
}


@dataclass(frozen=True)
class Score:
    """A table cell as the page shows it."""

    mean: str
    spread: str
    best: bool = False
    mark: str = ""

    @classmethod
    def of(cls, cell: Cell, *, best: bool = False, mark: str = "") -> Score:
        """Split a cell into mean and interval, so that the interval can be printed smaller."""
        mean, _, spread = cell.shown.partition(" ± ")
        return cls(mean, spread, best, mark)


@dataclass(frozen=True)
class Grid:
    """A table of the page; the first cell of each line is its heading."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str | Score]]
    oracle: bool = False


def write(comparison: Comparison, path: Path, against: str | None = None) -> Path:
    """Write the page, atomically; paths of run directories are relative to its folder.

    With ``against``, every table is followed by the differences to that method.
    """
    if not comparison.results:
        raise ConfigError(f"no run is finished, so {path} would be empty; finish one first")
    write_bytes(path, page(comparison, path.parent, against).encode())
    return path


def page(comparison: Comparison, folder: Path, against: str | None = None) -> str:
    """The page as text, for a file in ``folder``."""
    source = resources.files("fedshift.report").joinpath("template.html.j2").read_text("utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(source)
    return template.render(
        title=title(comparison),
        comparison=comparison,
        sections=[section(comparison, s, folder) for s in summaries(comparison, against)],
        environments=environments(comparison.results),
        figures=optional.has_matplotlib(),
        version=__version__,
    )


def title(comparison: Comparison) -> str:
    """Number of methods, and the scenarios."""
    count = len(comparison.methods)
    return f"{count} method{'s' * (count != 1)} on {', '.join(comparison.scenarios)}"


def section(comparison: Comparison, summary: Summary, folder: Path) -> dict[str, Any]:
    """Everything the page shows about one scenario."""
    runs = runs_of(comparison, summary.scenario)
    return {
        "name": summary.scenario,
        "text": runs[0].config.scenario.summary,
        "remark": comparison.remarks.get(runs[0].config.scenario.name, ""),
        "facts": facts(runs),
        "note": summary.note,
        "summary": overview(summary),
        "apart": apart(summary),
        "apart_note": summary.apart_note,
        "protocols": [
            protocol(comparison, summary.scenario, name, number)
            for number, name in enumerate(summary.columns)
        ],
        "traffic": traffic(comparison, summary),
        "shares": shares(comparison, summary),
        "confounders": summary.confounders,
        "runs": Grid("", ("method", "seed", "rounds", "run directory"), _runs(runs, folder)),
    }


def facts(runs: Sequence[RunResult]) -> dict[str, str]:
    """The main settings of the scenario; values that differ between runs are joined by "or"."""
    columns: dict[str, Callable[[RunResult], Any]] = {
        "domains": lambda r: ", ".join(r.config.scenario.domains),
        "unseen domain": lambda r: r.config.scenario.unseen or NONE,
        "clients": lambda r: r.summary["clients"],
        "rounds": lambda r: r.summary["rounds"],
        "backbone": lambda r: r.config.scenario.backbone,
        "seeds": lambda r: r.config.seed,
    }
    joint = {"seeds": ", "}
    return {
        name: joint.get(name, " or ").join(dict.fromkeys(str(value(r)) for r in runs))
        for name, value in columns.items()
    }


def overview(summary: Summary) -> Grid:
    """The table of methods x protocols."""
    found = summary.lines(lambda cell, mark, best: Score.of(cell, best=best, mark=mark))
    lines: list[list[str | Score]] = [[name, *cells, *sizes] for name, cells, sizes in found]
    return Grid("", summary.headings, lines, "ORACLE" in summary.chosen)


def apart(summary: Summary) -> Grid | None:
    """The differences to a method; None if none is asked for."""
    lines: list[list[str | Score]] = [[*line] for line in summary.apart]
    title = f"difference to {summary.against}"
    return Grid(title, summary.apart_headings, lines) if lines else None


def protocol(comparison: Comparison, scenario: str, name: str, number: int) -> dict[str, Any]:
    """One protocol: figures, and tables per domain at the selected, last and oracle round.

    Anchors are made of numbers: a name comes from a run's files and may hold anything.
    """
    anchor = f"{comparison.scenarios.index(scenario)}-{number}"
    return {
        "name": name,
        "text": PROTOCOLS.get(name, ""),
        "tables": {c: per_domain(rows(comparison, scenario, name, c), c) for c in CHOICES},
        "figures": list(drawings(comparison, scenario, name, anchor)),
        "further": further_measures(comparison, scenario, name),
        "confusion": list(confusions(comparison, scenario, name)),
    }


def further_measures(comparison: Comparison, scenario: str, name: str) -> Grid | None:
    """One line per method: every measure beside the main one, mean over domains and seeds."""
    runs = runs_of(comparison, scenario)
    measures = further.measures_beside(runs[0].config.scenario.task)
    lines: list[list[str | Score]] = [
        [m, *(_further(k, cell_of(comparison.of(m, scenario), name, k)) for k in measures)]
        for m in comparison.methods
        if comparison.of(m, scenario)
    ]
    known = any(isinstance(cell, Score) and cell.mean != NONE for line in lines for cell in line)
    heads = ("method", *map(further.title, measures))
    return Grid("other measures, selected rounds", heads, lines) if known else None


def _further(measure: str, cell: Cell) -> Score:
    """A measure beside the main one, in its own precision."""
    spread = "" if isnan(cell.interval) else further.number(measure, cell.interval)
    return Score(further.number(measure, cell.mean), spread)


def confusions(comparison: Comparison, scenario: str, name: str) -> Iterable[Grid]:
    """A matrix per method and domain: rows are true classes, columns predicted ones."""
    for method in comparison.methods:
        runs = comparison.of(method, scenario)
        for domain in domains_of(runs, name) if runs else ():
            counts = further.confusion(runs, name, domain)
            if not counts:
                continue
            last = max(max(cell) for cell in counts)
            classes = runs[0].summary.get("classes") or [str(i) for i in range(last + 1)]
            lines: list[list[str | Score]] = [
                [true, *(str(counts[i, j] or "") for j in range(len(classes)))]
                for i, true in enumerate(classes)
            ]
            yield Grid(f"{method}, {domain}: true by predicted class", ("", *classes), lines)


def per_domain(found: Sequence[TableRow], choice: Choice) -> Grid:
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
    return Grid(title, heads, lines, "oracle" in rules)


def _measure(found: Sequence[TableRow], measure: str) -> list[Score]:
    """A column of AVG, STD, ALL or worst; in STD no value is marked as best."""
    cells: list[Cell] = [getattr(row, measure) for row in found]
    return [Score.of(c) for c in cells] if measure == "std" else _column(found, cells)


def _column(found: Sequence[TableRow], cells: Sequence[Cell]) -> list[Score]:
    """One column; a value whose lead is beyond the interval is bold."""
    best = leaders(cells, [row.oracle for row in found])
    return [Score.of(c, best=b) for c, b in zip(cells, best, strict=True)]


def drawings(comparison: Comparison, scenario: str, name: str, anchor: str) -> Iterable[str]:
    """The protocol's figures as svg, ids with ``anchor``; none if matplotlib is missing."""
    if not optional.has_matplotlib():
        return
    figures = optional.figures()
    for kind, draw in (("curves", figures.curves), ("domains", figures.domains)):
        drawn = draw(comparison, scenario, name)
        yield figures.inline(drawn, f"{kind}-{anchor}", f"{kind} of {scenario}, {name}")


def traffic(comparison: Comparison, summary: Summary) -> Grid:
    """Bytes sent up and down per method, means over seeds."""
    heads = ("method", "up/round", "down/round", "up, training", "down, training")
    lines = []
    for row in summary.rows:
        runs = comparison.of(row.method, summary.scenario)
        counts = [
            [per_round(r), r.summary["bytes"]["train"], r.summary["bytes"]["total"]] for r in runs
        ]
        cells = [
            size(fmean(count[kind][way] for count in counts))
            for kind in range(3)
            for way in ("up", "down")
        ]
        lines.append([row.method, *cells])
    return Grid("", (*heads, "up, with scoring", "down, with scoring"), lines)


def shares(comparison: Comparison, summary: Summary) -> Grid:
    """Which data-derived payload left the sites, per method."""
    lines = [
        [row.method, shared(comparison.of(row.method, summary.scenario)[0])] for row in summary.rows
    ]
    return Grid("", ("method", "beside model weights"), lines)


def _runs(runs: Sequence[RunResult], folder: Path) -> list[list[str]]:
    return [
        [r.label, str(r.config.seed), str(r.summary["rounds"]), _place(r, folder)] for r in runs
    ]


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
