"""Distances between the parameters of sites of one domain and of different ones (CSAC, Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from torch import Tensor

from fedshift.analyse.alike import Series, caption, series_of
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.outputs import federation_of, own_models, require_on_disk
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError
from fedshift.evaluate.layers import last_weights
from fedshift.report.results import RunResult

Layers = dict[str, Tensor]


@register_kind("distances", paper="CSAC Fig. 4", group="domains")
def distances(
    results: Sequence[RunResult], *, across_runs: str = "auto", mixed: bool = False
) -> Finding:
    """L2 distance of sites' models by layer: within a domain, and between domains.

    Layers are the last weights of every stage, and the head. Needs models of single sites: the
    method `local`, or a run with the protocol personal-trained; and either two sites of one domain
    in a run, or several seeds.

    Options: across_runs: pairs of models of different seeds, which begin at different weights,
    instead of pairs within a run: true, false, or auto: where no domain has two sites.
    """
    if across_runs not in ("auto", "true", "false"):
        raise ConfigError(f"across_runs is {across_runs!r}; it takes auto, true or false")
    found = series_of(results, mixed=mixed)
    table: Rows = []
    for one in found:
        table += _rows(one, across_runs)
    ratios = {
        one.label: fmean([r["ratio"] for r in table if r["method"] == one.label]) for one in found
    }
    first = next(iter(ratios))
    sentence = (
        f"Models of different domains are {ratios[first]:.2f} times as far apart as models of one "
        f"domain ({first}, mean over {sum(r['method'] == first for r in table)} layers)."
    )
    figure = draw(lambda d: _figure(d, table, caption(found)))
    return Finding(table, figure, sentence)


def _rows(one: Series, across_runs: str) -> Rows:
    groups: list[list[tuple[str, Layers]]] = []
    for run in one.runs:
        require_on_disk(run)
        federation = federation_of(run)
        models = own_models(run, list(federation.sites))
        groups.append([(federation.sites[s].domain, _layers(m.net)) for s, m in models.items()])
    alone = all(len({d for d, _ in group}) == len(group) for group in groups)
    across = across_runs == "true" or (across_runs == "auto" and alone and len(groups) > 1)
    intra, inter = pair_distances(groups, across=across)
    if not intra or not inter:
        lacking = "two sites of one domain" if not intra else "sites of two domains"
        raise ConfigError(
            f"{one.label} has not {lacking}; repeat it with more clients, or give more seeds",
            "scenario.partition.clients_per_domain=2",
        )
    return [
        {
            "method": one.label,
            "layer": layer,
            "intra": fmean(intra[layer]),
            "inter": fmean(inter[layer]),
            "ratio": fmean(inter[layer]) / max(fmean(intra[layer]), 1e-300),
            "pairs_intra": len(intra[layer]),
            "pairs_inter": len(inter[layer]),
            "pairs_of": "different seeds" if across else "one run",
        }
        for layer in intra
    ]


def _layers(net: Any) -> Layers:
    entries = net.state_dict()
    return {stage: entries[key].detach().clone() for stage, key in last_weights(net).items()}


def pair_distances(
    groups: Sequence[Sequence[tuple[str, Layers]]], *, across: bool = False
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """L2 distances by layer of pairs of models: of one domain, and of different ones.

    A group is the models of one run; pairs are within a group, or of two groups if ``across``.
    """
    intra: dict[str, list[float]] = {}
    inter: dict[str, list[float]] = {}
    numbered = [(i, domain, own) for i, group in enumerate(groups) for domain, own in group]
    for (i, domain, a), (j, other, b) in combinations(numbered, 2):
        if (i != j) is not across:
            continue
        into = intra if domain == other else inter
        for layer in a:
            into.setdefault(layer, []).append(float((a[layer] - b[layer]).double().norm()))
    return intra, inter


def _figure(d: Any, table: Rows, note: str) -> Any:
    panels: dict[str, dict[str, list[float]]] = {}
    for method in dict.fromkeys(row["method"] for row in table):
        own = [row for row in table if row["method"] == method]
        panels[method] = {
            "one domain": [row["intra"] for row in own],
            "different domains": [row["inter"] for row in own],
        }
    layers = list(dict.fromkeys(row["layer"] for row in table))
    chart = d.Chart("distance of sites' parameters", note, y="L2 distance", ticks=layers)
    return d.bars(panels, chart)
