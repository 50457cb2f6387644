"""Tables in the terminal: a comparison, or one run in detail.

The commands ``run``, ``compare`` and ``show`` print them. All numbers come from ``report.tables``
and the results; nothing may be computed or chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from fedshift.core.analysis import analysis
from fedshift.report.cells import Cell
from fedshift.report.fitted import FittedTable
from fedshift.report.further import by_domain
from fedshift.report.results import Comparison, RunResult
from fedshift.report.tables import (
    CHOICES,
    NONE,
    Summary,
    choice_name,
    domains_of,
    joined,
    measure_name,
    measures_of,
    per_round,
    shared,
    size,
    summaries,
)


def console(comparison: Comparison, against: str | None = None) -> RenderableType:
    """One table per scenario, with the selection rule and the confounders below it.

    ``against`` names a method; a second table has every other method's difference to it.
    """
    found = summaries(comparison, against)
    remarks = [comparison.remarks.get(one.scenario.partition("[")[0], "") for one in found]
    pairs = zip(found, remarks, strict=True)
    return Group(*(part for summary, remark in pairs for part in _screen(summary, remark)))


def _screen(summary: Summary, remark: str) -> Iterable[RenderableType]:
    lines: list[list[str | Text]] = [
        [method, *cells, *traffic] for method, cells, traffic in summary.lines(_shown)
    ]
    yield FittedTable(summary.scenario, summary.headings, lines)
    if remark:
        yield Text(remark, style="bold")
    yield Text(summary.note)
    if summary.apart:
        yield Text("")
        yield FittedTable(f"difference to {summary.against}", summary.apart_headings, summary.apart)
        yield Text(summary.apart_note)
    yield Text(joined(summary.confounders) + "\n", style="dim")


def _shown(cell: Cell, mark: str, best: bool) -> Text:
    text = Text(cell.shown, style="bold" if best else "")
    return text.append(mark, style="bold red")


def detail(result: RunResult) -> RenderableType:
    """One run: every protocol at its three rounds, traffic, shared payload and confounders."""
    scenario, facts = result.config.scenario, result.summary
    head = Text(result.label, style="bold")
    head.append(
        f"  in {result.config.scenario_label}, seed {facts['seed']}, {facts['rounds']} rounds\n",
        "not bold",
    )
    known = [p for p in scenario.protocols if p in facts["protocols"]]
    missing = ", ".join(p for p in scenario.protocols if p not in known)
    lines = [f"{missing}: {NONE} (the method has no such model)"] if missing else []
    for name in scenario.analyses:
        values = ", ".join(f"{k.replace('_', ' ')} {v:.1f}" for k, v in facts[name].items())
        lines.append(f"{analysis(name).title}, last evaluation: {values}")
    lines += [f"traffic: {_traffic(result)}", f"shared beside weights: {shared(result)}"]
    for part, promise in facts.get("privacy", {}).items():
        lines.append(f"{part}: " + ", ".join(f"{key} {value}" for key, value in promise.items()))
    for client, rows in facts.get("lost", {}).items():
        lines.append(f"lost {len(rows)} times: {client}, at last in round {rows[-1]['round']}")
    for client, told in facts.get("capped", {}).items():
        lines.append(
            f"weight bounded: {client}, in {told['rounds']} rounds; it would have been "
            f"{told['weight']:.3g} of the mean"
        )
    dim = Text(joined(facts["confounders"]), style="dim")
    tables = [t for p in known for t in (_protocol(result, p), _further(result, p)) if t]
    return Group(head, *tables, *map(Text, lines), dim)


def _protocol(result: RunResult, protocol: str) -> FittedTable:
    names = domains_of([result], protocol)
    measures = measures_of(names)
    lines: list[list[str | Text]] = []
    for choice in CHOICES:
        if outcome := result.outcome(protocol, choice):
            values = [outcome.metrics.domains.get(d, math.nan) for d in names]
            values += [getattr(outcome.metrics, m) for m in measures]
            name = choice_name(choice, outcome.rule)
            lines.append([name, str(outcome.round), *(f"{v:.1f}" for v in values)])
    if samples := result.test_samples:
        counts = [str(samples.get(name, NONE)) for name in names]
        lines.append(["test samples", "", *counts, *[""] * len(measures)])
    heads = ["choice", "round", *names, *map(measure_name, measures)]
    return FittedTable(protocol, heads, lines)


def _further(result: RunResult, protocol: str) -> FittedTable | None:
    """Every other measure of the selected round, by domain; None for runs without any."""
    names = domains_of([result], protocol)
    lines: list[list[str | Text]] = [[*line] for line in by_domain(result, protocol, names)]
    mean = ["AVG"] if len(names) > 1 else []
    heads = ["measure", *names, *mean]
    return FittedTable(f"{protocol}, selected round", heads, lines) if lines else None


def _traffic(result: RunResult) -> str:
    each, total = per_round(result), result.summary["bytes"]["total"]
    return (
        f"{size(each['up'])} up and {size(each['down'])} down per round of training; "
        f"{size(total['up'])} up and {size(total['down'])} down in all, scoring included"
    )
