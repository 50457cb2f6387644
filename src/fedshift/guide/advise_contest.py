"""The contest behind ``advise``: who takes part, what is played on which data, and who goes on.

``guide.advise`` holds it and ``guide.halving`` says how long everything is. Scores come from
:meth:`Contest.score` alone: validation data, or a training domain that was left out of the run.
The domain that a question asks about is in no run of a contest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.core.registry import build
from fedshift.core.scenario import Scenario
from fedshift.evaluate.metrics import Metrics
from fedshift.experiment.compare import Job, plan, played
from fedshift.experiment.estimate import estimate
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.identity import configure_run
from fedshift.experiment.points import with_settings
from fedshift.experiment.progress import Watch
from fedshift.experiment.session import prepare
from fedshift.guide.shortlist import FEDAVG, LOCAL, Contender, Shortlist
from fedshift.report.cells import Cell
from fedshift.report.intervals import mean_error
from fedshift.report.results import Failure, RunResult
from fedshift.report.sweeps import validation_of
from fedshift.runs.record import read_lines

Outcome = RunResult | Failure
SEARCH = 2  # domains that are left out in turn while methods are still given up


@dataclass(frozen=True)
class Candidate:
    """A method of the shortlist with one setting, as it is typed."""

    entry: Contender
    method: str
    setting: str = ""  # "mu=0.1"; empty: the defaults


@dataclass(frozen=True)
class Lane:
    """What each candidate is played on once: a scenario and a seed."""

    scenario: Scenario
    seed: int


@dataclass
class Tried:
    """A candidate with its runs, one per lane, as far as they were played."""

    candidate: Candidate
    runs: list[Outcome] = field(default_factory=list)
    rounds: int = 0
    final: bool = False  # whether it was played to the end on fresh seeds

    @property
    def results(self) -> list[RunResult]:
        """The runs that did not diverge."""
        return [run for run in self.runs if isinstance(run, RunResult)]

    @property
    def diverged(self) -> bool:
        """Whether a run did."""
        return len(self.results) < len(self.runs)


@dataclass(frozen=True)
class Contest:
    """A question in a scenario: lanes, scores and the playing of runs."""

    question: Shortlist
    scenario: Scenario
    out: Path
    workers: int
    watch: Watch

    def lanes(self, seeds: Sequence[int], first: int = 0) -> list[Lane]:
        """One lane per seed; where domains are left out, each with the next of them."""
        if not self.question.left_out:
            return [Lane(self.scenario, seed) for seed in seeds]
        domains = self.scenario.domains
        return [
            Lane(without(self.scenario, domains[(first + i) % len(domains)]), seed)
            for i, seed in enumerate(seeds)
        ]

    @property
    def search(self) -> list[Lane]:
        """The lanes on which candidates are given up: seed 0 alone."""
        return self.lanes([0] * (SEARCH if self.question.left_out else 1))

    def final(self, seeds: int) -> list[Lane]:
        """The lanes of the end: seeds that chose nothing, and other domains first."""
        return self.lanes(range(1, seeds + 1), SEARCH)

    def play(self, wanted: Sequence[Candidate], lanes: Sequence[Lane], until: int) -> list[Tried]:
        """Play candidates on lanes up to a round; what was played before is read."""
        jobs: dict[tuple[str, int], Job] = {}
        for i, lane in enumerate(lanes):
            methods = [one.method for one in wanted]
            found = plan(methods, [lane.scenario], [lane.seed], self.out)
            jobs |= {(job.config.method, i): replace(job, until=until) for job in found}
        ended = {
            job.config.name: outcome
            for job, outcome in played([*jobs.values()], self.watch, self.workers)
        }
        return [
            Tried(
                one,
                [ended[jobs[one.method, i].config.name] for i in range(len(lanes))],
                until,
            )
            for one in wanted
        ]

    def score(self, result: RunResult) -> float:
        """What a run reached on validation data, or in the domain that was left out of it."""
        if self.question.left_out:
            return result.accuracy(self.question.protocol)
        return validation_of(result, self.question.protocol)

    def cell(self, tried: Tried) -> Cell:
        """The score over lanes; with one lane its error is that of the samples."""
        found = tried.results
        if len(found) != 1:
            return Cell.of(self.score(run) for run in found)
        return Cell.of([self.score(found[0])], self._error(found[0]))

    def _error(self, result: RunResult) -> float:
        """Standard error of one run's score, from the samples that it was counted on."""
        outcome = result.outcome(self.question.protocol)
        if outcome is None or result.config.scenario.objective != "classification":
            return math.nan
        metrics = outcome.metrics
        if not self.question.left_out:
            rows = [row for row in result.history if row["round"] == outcome.round]
            metrics = Metrics.from_json(rows[0]["scores"][self.question.protocol]["val"])
        return mean_error(metrics.domains, metrics.samples)

    def best(self, tried: Sequence[Tried], count: int) -> list[Tried]:
        """The best challengers; the first of the shortlist wins a tie."""
        known = [
            t for t in tried if not t.candidate.entry.baseline and not t.diverged and self.cell(t).n
        ]
        return sorted(known, key=lambda t: -self.cell(t).mean)[:count]


def without(scenario: Scenario, domain: str) -> Scenario:
    """The scenario with a training domain in the place of the one that is asked about."""
    others = tuple(d for d in scenario.domains if d != domain)
    return scenario.change(unseen=domain, domains=others, protocols=scenario.protocols)


def candidates(entries: Sequence[Contender], privacy: str) -> list[Candidate]:
    """The entries with their defaults, and the privacy part that was asked for."""
    return [Candidate(entry, protected(entry.method, entry, privacy)) for entry in entries]


def others(one: Candidate, privacy: str) -> Iterator[Candidate]:
    """The same method with the other values of its main parameter."""
    for value in one.entry.values:
        typed = with_settings(one.entry.method, {one.entry.setting: value})
        said = f"{one.entry.setting.rpartition('.')[2]}={value}"
        yield Candidate(one.entry, protected(typed, one.entry, privacy), said)


def protected(method: str, entry: Contender, privacy: str) -> str:
    """The expression with a privacy part; local training sends nothing that needs one."""
    return method if privacy == "none" or entry.method == LOCAL else f"{method} + {privacy}"


def admitted(
    wanted: Sequence[Candidate], lane: Lane
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Who can be played, and who is left out with the reason; an error if FedAvg is."""
    fit, left_out = [], []
    for one in wanted:
        try:
            config, whole = configure_run(one.method, lane.scenario, seed=lane.seed)
            prepare(config, whole).transport.close()
        except FedshiftError as error:
            if one.entry.method == FEDAVG:
                raise
            left_out.append((one.method, str(error)))
        else:
            fit.append(one)
    return fit, left_out


def warmed_up(
    wanted: Sequence[Candidate], lane: Lane, tell: Callable[[str], None]
) -> dict[str, Estimate]:
    """What a whole run of each would take, from two rounds in memory."""
    tell(f"two rounds of each of {len(wanted)} methods are timed")
    found = {}
    for one in wanted:
        config, whole = configure_run(one.method, lane.scenario, seed=lane.seed)
        found[one.method] = estimate(config, whole)
    return found


def bytes_sent(result: RunResult, rounds: int) -> float:
    """What a site sends in a whole run on average, from the rounds that were played."""
    if result.path is None:
        return math.nan
    played_rounds = result.history[-1]["round"]
    rows = [
        row
        for row in read_lines(result.path / "ledger.jsonl")
        if row["direction"] == "up" and row["round"] <= played_rounds
    ]
    sites = len({row["client"] for row in rows})
    return sum(row["bytes"] for row in rows) / max(1, sites) * rounds / played_rounds


def seconds_taken(result: RunResult) -> float:
    """What its rounds took, with their scoring."""
    return math.fsum(row["seconds"] + row.get("seconds_scoring", 0.0) for row in result.history)


def seconds_to_train(result: RunResult, rounds: int) -> float:
    """What training takes in a whole run, from the rounds played; the first may be longer.

    Scoring is left out: a method that adapts does so at every scoring here, and once in use.
    """
    first, *later = (row["seconds"] for row in result.history)
    return first + (rounds - 1) * (math.fsum(later) / len(later) if later else first)


def leaves(method: str) -> list[str]:
    """What leaves a site, in words: weights, and what parts derive from data."""
    whole = build(method)
    if method == LOCAL:
        return ["nothing"]
    told = [f"{d.name}: {d.shares}" for d in whole.declared if d.shares]
    hidden = [c.name for c in whole.channels if c.gives_privacy]
    weights = f"weights under {' and '.join(hidden)}" if hidden else "weights after each visit"
    return [weights, *told]


def suited(question: Shortlist, scenario: Scenario, privacy: str) -> tuple[Scenario, list[str]]:
    """The scenario as the question needs it, and notes on what was changed for that."""
    if scenario.selection == "oracle":
        raise ConfigError(
            "selection is oracle, which looks at test data, and advice comes from validation data; "
            "set another rule",
            "scenario.selection=validation",
        )
    if question.left_out and scenario.unseen is None:
        raise ConfigError(
            f"the question {question.name} is about a domain that nobody trains on, and scenario "
            f"{scenario.name!r} names none",
            "scenario.unseen=DOMAIN",
        )
    if question.left_out and len(scenario.domains) < 2:
        raise ConfigError(
            f"the question {question.name} leaves a training domain out in turn, and scenario "
            f"{scenario.name!r} has one; give it two or more"
        )
    changes: dict[str, Any] = {"protocols": (question.protocol,), "equal": "rounds", "analyses": ()}
    if extra := [name for name in question.allow if name not in scenario.allow]:
        changes["allow"] = (*scenario.allow, *extra)
    if privacy == "none":
        return scenario.change(**changes), []
    needed = {"private_at_new_site": "refuse", "bn": "average"}
    odd = {k: v for k, v in needed.items() if k != "bn" or scenario.bn == "recompute"}
    odd = {k: v for k, v in odd.items() if getattr(scenario, k) != v}
    notes = [f"{k} is {v} here: with {privacy} sites send nothing else." for k, v in odd.items()]
    return scenario.change(**changes, **odd), notes
