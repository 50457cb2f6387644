"""What it takes to reach a threshold: rounds, bytes over the network, local optimiser steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedshift.analyse.alike import Series, caption, series_of, under_protocol
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.report.results import RunResult
from fedshift.runs.record import read_lines


@register_kind("reach", paper="FedDebias Table 1", group="numbers of rounds")
def reach(
    results: Sequence[RunResult],
    *,
    threshold: float | None = None,
    protocol: str | None = None,
    mixed: bool = False,
) -> Finding:
    """Rounds, bytes and local steps until the test accuracy reaches a threshold.

    Options: threshold: in per cent; by default the highest that every run reaches.
    """
    found, notes = under_protocol(series_of(results, mixed=mixed), protocol, mixed=mixed)
    wanted = _reached_by_all(found) if threshold is None else threshold
    table = [_row(one, wanted) for one in found]
    if any(row["steps"] is None and row["rounds"] is not None for row in table):
        notes.append("runs of earlier versions recorded no local steps")
    chosen = " (the highest that all runs reach)" if threshold is None else ""
    fastest = sorted((r for r in table if r["rounds"] is not None), key=lambda r: r["rounds"])
    missed = [row["method"] for row in table if row["rounds"] is None]
    first = (
        f"{fastest[0]['method']} takes the fewest rounds to {wanted:.1f}{chosen}: "
        f"{fastest[0]['rounds']:g}."
        if fastest
        else f"No method reaches {wanted:.1f} in every seed."
    )
    more = f" Not reached in every seed by {', '.join(missed)}." if missed and fastest else ""
    figure = draw(lambda d: _figure(d, fastest, f"rounds to {wanted:.1f}", caption(found)))
    return Finding(table, figure, first + more, tuple(notes))


def _reached_by_all(found: Sequence[Series]) -> float:
    return min(max(v for _, v in run.curve(one.protocol)) for one in found for run in one.runs)


def _row(one: Series, threshold: float) -> dict[str, Any]:
    """The mean over seeds; a method that one seed does not bring there has no number."""
    rounds = [run.rounds_to(threshold, one.protocol) for run in one.runs]
    known = [round_ for round_ in rounds if round_ is not None]
    told: dict[str, Any] = {
        "method": one.label,
        "protocol": one.protocol,
        "threshold": threshold,
        "rounds": None,
        "bytes": None,
        "steps": None,
        "reached": len(known),
        "n": len(rounds),
    }
    if len(known) < len(rounds):
        return told
    pairs = list(zip(one.runs, known, strict=True))
    sent = [bytes_until(run, round_) for run, round_ in pairs]
    steps = [steps_until(run, round_) for run, round_ in pairs]
    return told | {"rounds": fmean(known), "bytes": _mean(sent), "steps": _mean(steps)}


def _mean(values: Sequence[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if len(known) == len(values) else None


def bytes_until(run: RunResult, round_: int) -> int | None:
    """Bytes of training, both ways, up to and with a round; None if the ledger is not on disk."""
    spent = bytes_by_round(run)
    return sum(n for r, n in spent.items() if r <= round_) if spent else None


def bytes_by_round(run: RunResult) -> dict[int, int]:
    """Bytes that training exchanged in each round, from the ledger; enrolment is round 0."""
    if run.path is None:
        return {}
    out: dict[int, int] = defaultdict(int)
    for row in read_lines(run.path / "ledger.jsonl"):
        if row["task"] == "train" and row["direction"] in ("up", "down"):
            out[row["round"]] += row["bytes"]
    return dict(out)


def steps_until(run: RunResult, round_: int) -> int | None:
    """Local steps of all clients up to and with a round; None if the run recorded none."""
    rows = [row for row in run.history if row["round"] <= round_]
    return sum(row["steps"] for row in rows) if all("steps" in row for row in rows) else None


def _figure(d: Any, rows: Rows, what: str, note: str) -> Any:
    if not rows:
        return None
    names = [row["method"] for row in rows]
    chart = d.Chart(what, note, y="rounds", ticks=names)
    return d.bars({"": {"": [row["rounds"] for row in rows]}}, chart)
