"""Kinds that draw what a scenario's analyses recorded: group effect and fusion weights by round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from fedshift.analyse.alike import Series, caption, series_of
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.report.results import RunResult


def recorded(run: RunResult, name: str) -> dict[int, dict[str, float]]:
    """The numbers that an analysis of the scenario measured, by round; an error if it did not."""
    found = {row["round"]: row[name] for row in run.history if name in row}
    if not found:
        raise ConfigError(
            f"{run.config.name} did not record {name}; repeat it with that analysis",
            f"scenario.analyses={','.join((*run.config.scenario.analyses, name))}",
        )
    return found


@register_kind("group-effect", paper="FedKA Fig. 3", group="numbers of rounds")
def group_effect(
    results: Sequence[RunResult], *, refined: bool = False, mixed: bool = False
) -> Finding:
    """Group effect per round (FedKA, Eq. 12): what aggregation loses on the unseen domain.

    Accuracy of the clients' own models, their mean, less that of the aggregated one, on the unseen
    domain's test samples; below zero, aggregation gains.

    Options: refined: against the model at the end of the round, after the server's own training.
    """
    key = "group_effect_refined" if refined else "group_effect"
    found = series_of(results, mixed=mixed)
    table: Rows = []
    for one in found:
        known = [recorded(run, "group-effect") for run in one.runs]
        rounds = sorted(set.intersection(*(set(values) for values in known)))
        for round_ in rounds:
            values = [own[round_] for own in known]
            own = [row[key] for row in values]
            table.append(
                {
                    "method": one.label,
                    "round": round_,
                    "group_effect": fmean(own),
                    "std": stdev(own) if len(own) > 1 else None,
                    "local": fmean(row["local"] for row in values),
                    "aggregated": fmean(row["tta" if refined else "aggregated"] for row in values),
                    "n": len(own),
                }
            )
    means = {
        one.label: fmean(r["group_effect"] for r in table if r["method"] == one.label)
        for one in found
    }
    best = min(means, key=means.__getitem__)
    verb = "loses" if means[best] >= 0 else "gains"
    sentence = (
        f"Aggregation {verb} {abs(means[best]):.1f} points with {best}, the best of {len(found)} "
        "methods (mean group effect over the scored rounds, lower is better)."
    )
    figure = draw(lambda d: _effect(d, found, table))
    return Finding(table, figure, sentence)


def _effect(d: Any, found: Sequence[Series], table: Rows) -> Any:
    made = []
    for one in found:
        rows = [row for row in table if row["method"] == one.label]
        spread = [row["std"] for row in rows] if len(one.runs) > 1 else None
        x, y = [row["round"] for row in rows], [row["group_effect"] for row in rows]
        made.append(d.Line(one.label, x, y, spread))
    words = {"x": "round", "y": "group effect, points (lower is better)"}
    return d.lines({"": made}, d.Chart("group effect", caption(found), **words))


@register_kind("fusion-weights", paper="CSAC Fig. 7", group="numbers of rounds")
def fusion_weights(results: Sequence[RunResult], *, mixed: bool = False) -> Finding:
    """Weight of each client in the aggregate over rounds, layer by layer (CSAC, Eq. 4)."""
    found = series_of(results, mixed=mixed)
    table: Rows = []
    for one in found:
        for run in one.runs:
            for round_, values in recorded(run, "fusion-weights").items():
                for name, weight in values.items():
                    layer, _, client = name.partition("/")
                    table.append(
                        {
                            "method": one.label,
                            "seed": run.config.seed,
                            "round": round_,
                            "layer": layer,
                            "client": client,
                            "weight": weight,
                        }
                    )
    top = max(table, key=lambda row: row["weight"])
    sentence = (
        f"The largest weight is {top['weight']:.2f}, of {top['client']} in {top['layer']} in round "
        f"{top['round']} ({top['method']})."
    )
    figure = draw(lambda d: _weights(d, found, table))
    return Finding(table, figure, sentence)


def _weights(d: Any, found: Sequence[Series], table: Rows) -> Any:
    """A panel per method and layer, a line per client; of the first seed of each method."""
    firsts = {one.label: one.runs[0].config.seed for one in found}
    panels: dict[str, list[Any]] = {}
    for method, seed in firsts.items():
        own = [row for row in table if (row["method"], row["seed"]) == (method, seed)]
        for layer in dict.fromkeys(row["layer"] for row in own):
            title = f"{method}: {layer}" if len(firsts) > 1 else layer
            for client in sorted({row["client"] for row in own}):
                rows = [r for r in own if (r["layer"], r["client"]) == (layer, client)]
                x, y = [row["round"] for row in rows], [row["weight"] for row in rows]
                panels.setdefault(title, []).append(d.Line(client, x, y))
    note = f"{caption(found)}; drawn: seed {next(iter(firsts.values()))}"
    chart = d.Chart("weight of each client in the aggregate", note, x="round", y="weight")
    return d.lines(panels, chart)
