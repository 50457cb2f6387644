"""The numbers behind the charts of a page, as JSON.

``report.html`` puts them into the page, whose scripts draw them. All numbers come from
``report.tables`` and the runs; nothing may be chosen here that a table would choose otherwise.
Methods are given by their place in the comparison, which is also what their looks follow from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from fedshift.report import further
from fedshift.report.results import Comparison, RunResult
from fedshift.report.tables import Summary, TableRow, runs_of, size

CLASSES = 60  # beyond so many, confusion matrices are left out: the page would grow by megabytes
Row = dict[str, Any]


def rounded(value: float, digits: int = 3) -> float | None:
    """A number for a chart; None if it is not known.

    >>> rounded(71.23456), rounded(float("nan"))
    (71.235, None)
    """
    return round(value, digits) if math.isfinite(value) else None


def section_data(comparison: Comparison, summary: Summary, anchor: str) -> Row:
    """Everything that is drawn about one scenario."""
    runs = runs_of(comparison, summary.scenario)
    classes = classes_of(runs)
    names = comparison.methods
    return {
        "id": anchor,
        "name": summary.scenario,
        "measure": further.title(runs[0].config.scenario.task.main),
        "methods": [names.index(row.method) for row in summary.rows],
        "classes": classes,
        "protocols": [
            {
                "name": protocol,
                "domains": list(rows[0].domains),
                "curves": [
                    curve(comparison.of(row.method, summary.scenario), protocol)
                    | {"m": names.index(row.method)}
                    for row in rows
                    if row.avg.n
                ],
                "dots": [dots(row) | {"m": names.index(row.method)} for row in rows if row.avg.n],
                "confusion": confusions(comparison, summary, protocol) if classes else [],
            }
            for protocol, rows in summary.columns.items()
        ],
        "cost": cost(comparison, summary),
    }


def curve(runs: Sequence[RunResult], protocol: str) -> Row:
    """Mean over seeds and sample deviation by round, over rounds that every seed was scored in."""
    known = [dict(r.curve(protocol)) for r in runs if r.outcome(protocol)]
    rounds = sorted(set.intersection(*(set(k) for k in known)))
    chosen = [(o.round, rounded(o.metrics.avg)) for r in runs if (o := r.outcome(protocol))]
    spread = [rounded(stdev(k[r] for k in known)) for r in rounds] if len(known) > 1 else None
    return {
        "x": rounds,
        "y": [rounded(fmean(k[r] for k in known)) for r in rounds],
        "s": spread,
        "n": len(known),
        "chosen": chosen if len(chosen) <= 5 else [],
    }


def dots(row: TableRow) -> Row:
    """A method's domains and AVG at the selected rounds, with half-widths of 95 % intervals."""
    return {
        "values": [rounded(cell.mean) for cell in row.domains.values()],
        "halves": [rounded(cell.interval) for cell in row.domains.values()],
        "avg": rounded(row.avg.mean),
        "half": rounded(row.avg.interval),
        "n": row.avg.n,
    }


def classes_of(runs: Sequence[RunResult]) -> list[str]:
    """Names of the classes; empty if they are unknown, or too many to draw."""
    for run in runs:
        if names := run.summary.get("classes"):
            return [str(name) for name in names] if len(names) <= CLASSES else []
    cells = [c for run in runs for c in _cells(run)]
    count = max((max(true, predicted) + 1 for true, predicted, _ in cells), default=0)
    return [str(i) for i in range(count)] if count <= CLASSES else []


def _cells(run: RunResult) -> list[Sequence[Any]]:
    found = [o for p in run.summary["protocols"] if (o := run.outcome(p))]
    return [cell for o in found for rows in o.metrics.confusion.values() for cell in rows]


def confusions(comparison: Comparison, summary: Summary, protocol: str) -> list[Row]:
    """By method and domain, flat triples (true, predicted, count), added up over seeds."""
    out = []
    names = list(summary.columns[protocol][0].domains)
    for row in summary.columns[protocol]:
        runs = comparison.of(row.method, summary.scenario)
        for d, domain in enumerate(names):
            if counts := further.confusion(runs, protocol, domain):
                flat = [int(v) for (t, p), n in sorted(counts.items()) for v in (t, p, n)]
                out.append({"m": comparison.methods.index(row.method), "d": d, "c": flat})
    return out


def cost(comparison: Comparison, summary: Summary) -> list[Row]:
    """By method: bytes of training, both ways, and AVG under the first protocol that it has."""
    out = []
    for i, row in enumerate(summary.rows):
        found = next((rows[i].avg for rows in summary.columns.values() if rows[i].avg.n), row.avg)
        runs = comparison.of(row.method, summary.scenario)
        total = fmean(sum(r.summary["bytes"]["train"].values()) for r in runs)
        out.append(
            {
                "m": comparison.methods.index(row.method),
                "x": round(total),
                "y": rounded(found.mean),
                "half": rounded(found.interval),
                "says": f"{size(total)} in training",
            }
        )
    return out
