"""Make the runs that claims need: each once, main claims first, resumable, several at a time.

``fedshift claims run`` calls :func:`run_claims`. Claims share runs: one FedAvg serves all that are
compared with it. What is in the results file is not run again, and what is in ``out`` is resumed.
The results file also says which runs belong to a claim, so that ``fedshift claims table`` needs
neither the data nor the rounds that have to be played to match two budgets.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedshift.base.errors import DataError
from fedshift.base.process import cores
from fedshift.claims.claim import Claim
from fedshift.claims.store import Results, row_of
from fedshift.core.config import named_options
from fedshift.core.registry import SCENARIOS
from fedshift.core.scenario import Budget, Scenario
from fedshift.experiment.budget import matched_rounds
from fedshift.experiment.compare import Job, plan, played
from fedshift.experiment.progress import Watch
from fedshift.experiment.scenario import scenario_from
from fedshift.report.results import Failure, RunResult

Side = Literal["method", "control"]


@dataclass(frozen=True)
class Sides:
    """The runs of a claim: names by seed, of the method and of its control."""

    method: dict[int, str]
    control: dict[int, str]


@dataclass(frozen=True)
class Missing:
    """Runs that are still to be made, and which runs belong to which claim."""

    jobs: list[Job]
    sides: dict[str, Sides]
    missing: dict[str, str]  # claims whose data are not here, and what is missing


def scenario_of(claim: Claim, side: Side = "method") -> Scenario:
    """The scenario of one side of a claim, with its changes; at its scale if there are several."""
    changes = claim.set | (claim.control_set if side == "control" else {})
    known = SCENARIOS.entries().get(claim.scenario)
    scale = claim.scale if known and "scale" in known.options else None
    return scenario_from(claim.scenario, scale, None, changes)


def digest_of(claim: Claim) -> str:
    """Changes with the entry and with its scenario: runs that were planned before count no more."""
    scenarios = [named_options(scenario_of(claim, side)) for side in get_args(Side)]
    text = json.dumps([claim.model_dump(mode="json", exclude={"published", "says"}), scenarios])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def kept_sides(claims: Sequence[Claim], results: Results) -> dict[str, Sides]:
    """The runs of each claim as the results file has them; none of a claim that has changed."""
    out = {}
    for claim in claims:
        plan = results.plans.get(claim.name)
        if plan is not None and plan["digest"] == digest_of(claim):
            named = ({int(s): run for s, run in plan[side].items()} for side in get_args(Side))
            out[claim.name] = Sides(*named)
    return out


def plan_claims(claims: Sequence[Claim], results: Results, out: Path) -> Missing:
    """What is left to run for these claims, in the order in which to run it.

    Main claims come first, and of those every claim's first seed before any claim's second: however
    long there is time, pairs of method and control are complete.
    """
    jobs: dict[tuple[bool, int, str], Job] = {}
    sides: dict[str, Sides] = {}
    missing: dict[str, str] = {}
    for claim in claims:
        try:
            found = [_side(claim, side, out) for side in get_args(Side)]
        except DataError as error:
            missing[claim.name] = str(error)
            continue
        named = [{job.config.seed: job.config.name for job in side} for side in found]
        sides[claim.name] = Sides(*named)
        plan = {str(side): names for side, names in zip(get_args(Side), named, strict=True)}
        results.keep_plan(claim.name, digest_of(claim), plan)
        for job in (job for side in found for job in side):
            if job.config.name not in results.rows:
                jobs.setdefault((not claim.main, job.config.seed, job.config.name), job)
    ordered = sorted(jobs, key=lambda key: key[:2])
    return Missing(list({key[2]: jobs[key] for key in ordered}.values()), sides, missing)


def _side(claim: Claim, side: Side, out: Path) -> list[Job]:
    """The runs of one side of a claim, one per seed."""
    sides, scenario = (claim.method, claim.control), scenario_of(claim, side)
    jobs = matched_jobs([getattr(claim, side)], sides, scenario, claim.equal, claim.seeds, out)
    return list(jobs.values())


def matched_jobs(
    methods: Sequence[str],
    among: Sequence[str],
    scenario: Scenario,
    equal: Budget,
    seeds: int,
    out: Path,
) -> dict[tuple[str, int], Job]:
    """Runs of methods that have the same of a budget ``among`` others, by method and seed.

    Claims and recipes plan theirs here, so that equal runs have one name and are made once.
    """
    rounds = matched_rounds(list(dict.fromkeys(among)), scenario.change(equal=equal))
    jobs: dict[tuple[str, int], Job] = {}
    for count in dict.fromkeys(rounds[method] for method in methods):
        own = [method for method in methods if rounds[method] == count]
        found = plan(own, [scenario.change(rounds=count)], range(seeds), out)
        made = {(job.config.method.replace(" ", ""), job.config.seed): job for job in found}
        jobs |= {(m, s): made[m.replace(" ", ""), s] for m in own for s in range(seeds)}
    return jobs


def run_claims(
    todo: Missing, results: Results, watch: Watch, **how: Any
) -> Iterator[RunResult | Failure]:
    """Make the runs that are left for claims; see :func:`make_runs`, which takes the rest."""
    return make_runs(todo.jobs, results, watch, **how)


def make_runs(  # noqa: PLR0913  every choice by keyword
    jobs: Sequence[Job],
    results: Results,
    watch: Watch,
    *,
    workers: int | None = None,
    hours: float = 0.0,
    executor: str = "local",
    executor_options: Mapping[str, Any] | None = None,
) -> Iterator[RunResult | Failure]:
    """Make runs and append each to the results as it finishes; recipes call it, too.

    With ``hours``, no run is started after that time; those under way are finished. ``executor`` is
    where they are played, as in :func:`~fedshift.experiment.compare.compare`.
    """
    ends = time.monotonic() + 3600 * hours if hours else float("inf")
    count = workers or (cores() if executor == "local" else max(len(jobs), 1))
    waiting = list(jobs)
    while waiting and time.monotonic() < ends:
        batch, waiting = (waiting[:count], waiting[count:]) if hours else (waiting, [])
        for _, outcome in played(batch, watch, count, executor=executor, options=executor_options):
            if isinstance(outcome, RunResult):
                results.add(row_of(outcome))
            yield outcome
