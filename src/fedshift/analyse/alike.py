"""Which runs may stand in one analysis: the same scenario, scale, protocol and scoring moment.

Every kind begins here: runs become one series per method, its seeds together. Runs that differ in
anything but the method and the seed are refused, because their numbers do not compare; whoever asks
for them nevertheless gets labels that say in what they differ.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.core.config import compared, flat
from fedshift.report.results import RunResult

# Options that leave the training and the scored model as they are, or belong to a method's needs.
NEUTRAL = frozenset({"analyses", "protocols", "evaluate_every", "confusion", "allow"})


@dataclass(frozen=True)
class Series:
    """The runs of one method, one per seed, and the protocol under which they are looked at."""

    label: str
    runs: tuple[RunResult, ...]
    protocol: str = ""


def series_of(
    results: Sequence[RunResult], *, mixed: bool = False, varied: Collection[str] = ()
) -> list[Series]:
    """Runs by method, in the order given; refuses runs of different scenarios unless ``mixed``.

    ``varied`` names options of the scenario that may differ, because the kind is about them; runs
    that differ in one of them are different series.
    """
    # A fingerprint covers the public set where a run may use one, and methods differ in that.
    one_kind = len({"public_set" in run.config.scenario.allow for run in results}) == 1
    facts = [_facts(run, varied, data=one_kind) for run in results]
    keys = dict.fromkeys(key for own in facts for key in own)
    differing = [k for k in keys if any(own.get(k) != facts[0].get(k) for own in facts)]
    if differing and not mixed:
        key = differing[0]
        values = list(dict.fromkeys(str(own.get(key)) for own in facts))
        raise ConfigError(
            f"these runs differ in {key} ({', '.join(values[:3])}), so their numbers do not "
            "compare; leave some out, or ask for mixed runs, which are then labelled",
            "mixed",
        )
    groups: dict[str, list[RunResult]] = {}
    for run, own in zip(results, facts, strict=True):
        options = flat(run.config.scenario)
        known = own | {key: options.get(key) for key in varied}
        apart = ", ".join(f"{key}={known.get(key)}" for key in (*differing, *varied))
        groups.setdefault(f"{run.label} ({apart})" if apart else run.label, []).append(run)
    return [_series(label, runs) for label, runs in groups.items()]


def _series(label: str, runs: Sequence[RunResult]) -> Series:
    seeds = [run.config.seed for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"{label} is there twice with seed {max(seeds, key=seeds.count)}; give each run once"
        )
    return Series(label, tuple(sorted(runs, key=lambda run: run.config.seed)))


def _facts(run: RunResult, varied: Collection[str], *, data: bool) -> dict[str, Any]:
    """What must be the same: the scenario's name, its options, and the data."""
    scenario = run.config.scenario
    left_out = NEUTRAL | set(varied)
    options = {k: v for k, v in compared(scenario, flat(scenario)).items() if k not in left_out}
    known = {"data version": run.config.data} if run.config.data and data else {}
    first = {"scale": scenario.scale, "scored": scenario.scored}
    return first | {"scenario": scenario.name} | options | known


def under_protocol(
    found: Sequence[Series], protocol: str | None = None, *, mixed: bool = False
) -> tuple[list[Series], list[str]]:
    """Each series under a protocol, and notes about methods that are left out.

    Without a name it is the first one that all of them have. A method that was asked for the
    protocol and has no such model is left out; a run that was never scored under it is an error.
    """
    if protocol is None:
        return _common(found, mixed=mixed), []
    kept, notes = [], []
    for one in found:
        if all(protocol in run.summary["protocols"] for run in one.runs):
            kept.append(replace(one, protocol=protocol))
            continue
        for run in one.runs:
            if protocol not in run.config.scenario.protocols:
                scored = ", ".join(run.summary["protocols"])
                raise ConfigError(
                    f"{run.config.name} was not scored under {protocol!r} but under {scored}; "
                    "repeat it with that protocol",
                    f"scenario.protocols={','.join((*run.config.scenario.protocols, protocol))}",
                )
        notes.append(f"{one.label} has no model for {protocol}")
    if not kept:
        raise ConfigError(f"none of these methods has a model for {protocol!r}; choose another")
    return kept, notes


def _common(found: Sequence[Series], *, mixed: bool) -> list[Series]:
    """Each series under the first protocol that all have; under its own first one if mixed."""
    own = [[p for p in one.runs[0].summary["protocols"] if _in_all(p, one.runs)] for one in found]
    shared = [p for p in own[0] if all(p in names for names in own)]
    if shared:
        return [replace(one, protocol=shared[0]) for one in found]
    if not mixed or not all(own):
        listed = "; ".join(
            f"{one.label}: {', '.join(p)}" for one, p in zip(found, own, strict=True)
        )
        raise ConfigError(
            f"these runs have no protocol in common ({listed}); leave some out, or ask for mixed "
            "runs, which are then labelled",
            "mixed",
        )
    return [
        replace(one, label=f"{one.label} ({names[0]})", protocol=names[0])
        for one, names in zip(found, own, strict=True)
    ]


def require_classes(found: Sequence[Series], what: str) -> None:
    """Raise unless every run predicts one of the same classes."""
    runs = [run for one in found for run in one.runs]
    if any(run.config.scenario.objective != "classification" for run in runs):
        raise ConfigError(f"{what} is about classes, and one of these runs predicts something else")
    kinds = {tuple(run.summary["classes"]) for run in runs if "classes" in run.summary}
    if len(kinds) > 1:
        raise ConfigError(f"{what} is of the same classes for all, and these runs have others")


def _in_all(protocol: str, runs: Sequence[RunResult]) -> bool:
    return all(protocol in run.summary["protocols"] for run in runs)


def caption(found: Sequence[Series]) -> str:
    """Scenario, scale, protocol, scoring moment, selection rule and number of seeds, for people."""
    scenario = found[0].runs[0].config.scenario
    names = dict.fromkeys(run.config.scenario.name for one in found for run in one.runs)
    protocols = ", ".join(dict.fromkeys(one.protocol for one in found if one.protocol))
    counts = sorted({len(one.runs) for one in found})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    words = [
        ", ".join(names),
        f"{scenario.scale} scale" if scenario.scale else "",
        f"protocol {protocols}" if protocols else "",
        f"{scenario.scored} model",
        f"round by {scenario.selection}",
        seeds if counts != [1] else "1 seed",
    ]
    return ", ".join(filter(None, words))
