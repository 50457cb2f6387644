"""Accuracy over rounds: mean over seeds, their scatter, and the rounds that are reported."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from fedshift.analyse.alike import Series, caption, series_of, under_protocol
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.report.further import title
from fedshift.report.results import RunResult


@register_kind("curves", paper="FDSE Fig. 5, F2DC Fig. 5", group="numbers of rounds")
def curves(
    results: Sequence[RunResult],
    *,
    protocol: str | None = None,
    measure: str = "avg",
    split: str = "test",
    mixed: bool = False,
) -> Finding:
    """Accuracy over rounds, one line per method.

    Options: measure: avg, worst, std, loss, or a measure of the objective; split: test or val.
    """
    found, notes = under_protocol(series_of(results, mixed=mixed), protocol, mixed=mixed)
    table: Rows = []
    for one in found:
        table += _rows(one, measure, split)
    if not table:
        raise ConfigError("no round was scored under the same number in all seeds; give other runs")
    ends = {row["method"]: row["mean"] for row in table}  # the last round of each wins
    best = max(ends, key=lambda name: ends[name] if measure not in LESS else -ends[name])
    what = title(_main(found)) if measure == "avg" else measure
    last = [row for row in table if row["method"] == best][-1]
    sentence = (
        f"After round {last['round']}, {best} has the best {split} {what} under "
        f"{found[0].protocol}: {last['mean']:.1f}, of {len(found)} methods."
    )
    chart = {
        "title": f"{split} {what} over rounds",
        "note": caption(found) + ("; band: one std over seeds" if _many(found) else ""),
        "x": "round",
        "y": f"{split} {what}",
    }
    return Finding(table, draw(lambda d: _figure(d, found, table, chart)), sentence, tuple(notes))


LESS = ("loss", "nll", "ece", "mae", "rmse", "std")  # measures of which less is better


def _rows(one: Series, measure: str, split: str) -> Rows:
    """Mean and deviation over the seeds, at the rounds that every seed was scored at."""
    known = [dict(run.curve(one.protocol, measure, split)) for run in one.runs]
    rounds = sorted(set.intersection(*(set(values) for values in known)))
    return [
        {
            "method": one.label,
            "protocol": one.protocol,
            "round": round_,
            "mean": fmean(values[round_] for values in known),
            "std": stdev(values[round_] for values in known) if len(known) > 1 else None,
            "n": len(known),
        }
        for round_ in rounds
    ]


def _figure(d: Any, found: Sequence[Series], table: Rows, chart: dict[str, str]) -> Any:
    made = []
    for one in found:
        rows = [row for row in table if row["method"] == one.label]
        x, y = [row["round"] for row in rows], [row["mean"] for row in rows]
        spread = [row["std"] for row in rows] if len(one.runs) > 1 else None
        dots = [(o.round, o.metrics.avg) for run in one.runs if (o := run.outcome(one.protocol))]
        plain = chart["y"].startswith("test") and "loss" not in chart["y"]
        made.append(d.Line(one.label, x, y, spread, dots if plain and len(dots) == 1 else ()))
    return d.lines({"": made}, d.Chart(**chart))


def _main(found: Sequence[Series]) -> str:
    return found[0].runs[0].config.scenario.task.main


def _many(found: Sequence[Series]) -> bool:
    return any(len(one.runs) > 1 for one in found)
