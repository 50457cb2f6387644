"""What a method costs: parameters, bytes, floating-point operations, time beside a control's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedshift.analyse.alike import Series, caption, series_of
from fedshift.analyse.finding import Finding
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.core.net import Net
from fedshift.engine.build import build_net
from fedshift.engine.federation import federate_for
from fedshift.experiment.session import prepare
from fedshift.report.results import RunResult
from fedshift.runs.record import read_lines


@register_kind("cost", paper="FDSE Table 4, F2DC Table 4", group="cost")
def cost(
    results: Sequence[RunResult],
    *,
    against: str = "fedavg",
    flops: str = "forward",
    mixed: bool = False,
) -> Finding:
    """Parameters, bytes up and down, FLOPs and time per round, relative to a control's.

    Bytes are of one client in one round of training. FLOPs are counted by torch: of a forward pass
    of one sample, or of one round that is played again in memory, everything the method computes
    included. Time is the median over rounds, and compares only within one machine and one set of
    runs.

    Options: against: the method that time is relative to; flops: forward, round or none.
    """
    found = series_of(results, mixed=mixed)
    table = [_row(one, flops) for one in found]
    control = next((row for row in table if row["method"] == against), None)
    for row in table:
        known = control is not None and control["seconds"] and row["seconds"] is not None
        row[f"time / {against}"] = (
            row["seconds"] / control["seconds"] if known and control else None
        )
    notes = [] if control else [f"{against} is not among these runs, so no time is relative to it"]
    notes.append(f"FLOPs: {FLOPS[flops]}" if flops in FLOPS else "FLOPs were not counted")
    heavy = max(table, key=lambda row: row["up"] or 0)
    slow = max(table, key=lambda row: row[f"time / {against}"] or 0)
    sentence = f"{heavy['method']} uploads most, {_size(heavy['up'])} per client and round"
    if control:
        times = slow[f"time / {against}"]
        sentence += f"; {slow['method']} takes the most time, {times:.2f} times {against}'s"
    figure = draw(lambda d: _figure(d, table, against, caption(found))) if control else None
    return Finding(table, figure, sentence + ".", tuple(notes))


FLOPS = {
    "forward": "a forward pass of one sample through the scored net",
    "round": "one round, counted while it is played again in memory",
}


def _size(count: float | None) -> str:
    return "unknown" if count is None else f"{count / 1e6:.2f} MB"


def _row(one: Series, flops: str) -> dict[str, Any]:
    """Means over the seeds; the net is that of the first one."""
    traffic = [client_bytes(run) for run in one.runs]
    times = [_seconds(run) for run in one.runs]
    known = [t for t in times if t is not None]
    return {
        "method": one.label,
        "parameters": one.runs[0].summary.get("parameters"),
        "up": _mean([up for up, _ in traffic]),
        "down": _mean([down for _, down in traffic]),
        "flops": _flops(one.runs[0], flops),
        "seconds": fmean(known) if known else None,
        "n": len(one.runs),
    }


def client_bytes(run: RunResult) -> tuple[float | None, float | None]:
    """Bytes up and down of one client in one round of training, the mean over all visits."""
    if run.path is None:
        return None, None
    rows = [r for r in read_lines(run.path / "ledger.jsonl") if r["task"] == "train"]
    up, down = ([r["bytes"] for r in rows if r["direction"] == way] for way in ("up", "down"))
    return (fmean(up) if up else None, fmean(down) if down else None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def _seconds(run: RunResult) -> float | None:
    """Seconds that training takes per round: the median, since a first round may warm up."""
    found = [row["seconds"] for row in run.history if "seconds" in row]
    return median(found) if found else None


def _flops(run: RunResult, kind: str) -> int | None:
    if kind == "none" or not run.config.replayable:
        return None
    return played_flops(run) if kind == "round" else forward_flops(net_of(run))


def net_of(run: RunResult) -> Net:
    """The net of a run with the modules of its method, initial weights."""
    config, method = run.config, run.config.build()
    held = federate_for(method, config.scenario, config.seed)
    return build_net(config, method, held)


@torch.no_grad()
def forward_flops(net: Net) -> int:
    """Operations of one sample's forward pass; a multiplication and an addition are two."""
    counter = FlopCounterMode(display=False)
    net.eval()
    with counter:
        net(torch.zeros(1, *net.shape))
    return counter.get_total_flops()


def played_flops(run: RunResult) -> int:
    """Operations of the run's first round, clients and server, while it is played in memory.

    Nothing is scored or written. Losses with forward passes of their own are included.
    """
    config = run.config
    short = config.scenario.change(rounds=2, evaluate_every=2, analyses=())
    session = prepare(config.model_copy(update={"scenario": short}), config.build())
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            session.advance()
    finally:
        session.transport.close()
    return counter.get_total_flops()


def _figure(d: Any, table: Sequence[dict[str, Any]], against: str, note: str) -> Any:
    control = next(row for row in table if row["method"] == against)
    keys = ("parameters", "up", "down", "flops", "seconds")
    known = [k for k in keys if all(row[k] is not None for row in table) and control[k]]
    shares = {row["method"]: [row[k] / control[k] for k in known] for row in table}
    words = {"up": "bytes up", "down": "bytes down", "seconds": "time", "flops": "FLOPs"}
    ticks = [words.get(k, k) for k in known]
    return d.bars({"": shares}, d.Chart(f"cost relative to {against}", note, ticks=ticks))
