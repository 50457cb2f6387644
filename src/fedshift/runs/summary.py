"""The summary of a run: which round is reported under which selection rule.

A session writes it as ``summary.json`` when a run is finished. It must follow from the metrics
alone, so that anybody can recompute it from the run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedshift.core.config import RunConfig
from fedshift.evaluate.metrics import Metrics

LAST = 5  # scored rounds that the rule last5 averages over
Row = dict[str, Any]


def summarise(config: RunConfig, history: Sequence[Row], **facts: Any) -> Row:
    """The summary of a run as JSON; ``facts`` are added as they are."""
    scored = [row for row in history if row.get("scores")]
    names = [p for p in config.scenario.protocols if p in scored[-1]["scores"]]
    measured = {k: scored[-1][k] for k in config.scenario.analyses if k in scored[-1]}
    return {
        "name": config.name,
        "method": config.label,
        "scenario": config.scenario.name,
        "seed": config.seed,
        "rounds": history[-1]["round"],
        "confounders": config.scenario.confounders(),
        "protocols": {name: choose(name, scored, config.scenario.selection) for name in names},
    } | (measured | facts)


def selected_rounds(config: RunConfig, history: Sequence[Row]) -> dict[str, int]:
    """The selected round of each protocol, after the rounds in ``history``."""
    scored = [row for row in history if row.get("scores")]
    if not scored:
        return {}
    rule = config.scenario.selection
    names = [p for p in config.scenario.protocols if p in scored[-1]["scores"]]
    return {name: choose(name, scored, rule)["selected"]["round"] for name in names}


def comparable(scored: Sequence[Row]) -> Sequence[Row]:
    """The rounds in which every site was scored, or all rounds if there is none.

    A mean over fewer sites is a different quantity and must not win a comparison of rounds.
    """
    return [row for row in scored if not row.get("unscored")] or scored


def choose(protocol: str, scored: Sequence[Row], rule: str) -> Row:
    """What each rule reports of a protocol: the selected one, and the last and oracle rounds.

    The earliest round wins a tie. ``last5`` reports the mean of the last five rounds in which every
    site was scored, under the number of the last one: single rounds scatter by points where test
    sets are small, and nothing is chosen.
    """
    rounds = comparable(scored)

    def best(split: str) -> Row:
        return max(rounds, key=lambda row: row["scores"][protocol][split]["avg"])

    rows = {"validation": best("val"), "last": scored[-1], "oracle": best("test")}
    found = {name: (row["round"], row["scores"][protocol]["test"]) for name, row in rows.items()}
    if rule == "last5":
        found[rule] = scored[-1]["round"], mean_of([r["scores"][protocol]["test"] for r in rounds])
    chosen = {"selected": rule, "last": "last", "oracle": "oracle"}
    return {
        choice: {"rule": name, "round": found[name][0], "metrics": found[name][1]}
        for choice, name in chosen.items()
    }


def mean_of(rows: Sequence[Row]) -> Row:
    """Metrics averaged over the last five of ``rows``, or all if there are fewer."""
    return Metrics.mean([Metrics.from_json(row) for row in rows[-LAST:]]).to_json()
