"""The demo: each core method under its own paper's question, beside its fair control.

``fedshift demo`` calls :func:`demonstrate`. Settings stand in ``scenarios/digits.py``; they were
chosen with another seed than those that are shown. A sentence under each table says what the runs
say, also where a method does not help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.experiment.compare import plan, played
from fedshift.experiment.progress import Watch
from fedshift.experiment.scenario import find_scenario
from fedshift.report import bootstrap
from fedshift.report.results import Comparison, Failure, RunResult


@dataclass(frozen=True)
class Question:
    """A method against its control in one scenario."""

    scenario: str
    method: str
    control: str
    protocol: str
    control_protocol: str = ""  # empty: the same


QUESTIONS = (
    Question("digits/personal", "fdse", "fedavg", "personal"),
    Question("digits/personal", "fdse", "fedbn", "personal"),
    Question("digits/global", "f2dc", "fedavg", "global"),
    Question("digits/unseen", "fdse", "fedavg + adapt-bn", "unseen-adapted"),
    Question("digits/unseen", "csac", "fedavg + adapt-bn", "unseen"),
    Question("digits/target", "fedka", "fedavg + adapt-bn", "unseen", "unseen-adapted"),
    Question("digits/label-skew", "feddebias", "fedavg", "global"),
)


def demonstrate(
    out: Path, watch: Watch, workers: int, *, seeds: Sequence[int] = (0,), rounds: int | None = None
) -> Comparison:
    """Train what the questions need, several runs at a time, and say what each comes to."""
    wanted: dict[str, dict[str, None]] = {}
    for q in QUESTIONS:
        wanted.setdefault(q.scenario, {}).update(dict.fromkeys((q.control, q.method)))
    jobs = []
    for name, methods in wanted.items():
        scenario = find_scenario(name)
        scenario = scenario.change(rounds=rounds or scenario.rounds)
        jobs += plan(list(methods), [scenario], seeds, out)
    # The last question takes longest: begun first, it does not keep everybody waiting at the end.
    found = {job.config.name: outcome for job, outcome in played(jobs[::-1], watch, workers)}
    ordered = [found[job.config.name] for job in jobs]
    results = [r for r in ordered if isinstance(r, RunResult)]
    failures = [r for r in ordered if isinstance(r, Failure)]
    remarks: dict[str, str] = {}
    for question in QUESTIONS:
        remarks[question.scenario] = " ".join(
            filter(None, (remarks.get(question.scenario, ""), remark(question, results)))
        )
    return Comparison(results, failures, out, remarks=remarks)


def remark(question: Question, results: Sequence[RunResult]) -> str:
    """One sentence: who is ahead, by how much, and whether that is beyond the error."""
    own = [r for r in results if r.config.scenario.name == question.scenario]
    beside = question.control_protocol or question.protocol
    ours = _by_seed(own, question.method, question.protocol)
    theirs = _by_seed(own, question.control, beside)
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return ""
    draws = np.mean([ours[s] - theirs[s] for s in seeds], axis=0)
    low, high = np.quantile(draws, (0.025, 0.975))
    mean = float(draws.mean())
    names = f"{question.method} ({question.protocol})", f"{question.control} ({beside})"
    if low <= 0 <= high:
        said = "does not differ beyond the error of the test samples from"
    else:
        said = f"is {abs(mean):.1f} points {'better' if mean > 0 else 'worse'} than"
    return f"{names[0]} {said} {names[1]}: {mean:+.1f}, 95 % from {low:+.1f} to {high:+.1f}."


def _by_seed(results: Sequence[RunResult], method: str, protocol: str) -> dict[int, np.ndarray]:
    """Draws of the number over test samples, by seed.

    They are those of the bootstrap, which pair two methods by sample, or from a normal distribution
    with the number's standard error where no predictions were kept.
    """
    out = {}
    for result in results:
        outcome = result.outcome(protocol) if result.label == method else None
        if outcome is not None:
            draws = result.draws(protocol, outcome.round)
            if draws is None:
                rng = np.random.default_rng(result.config.seed)
                draws = rng.normal(outcome.metrics.avg, result.error(outcome), bootstrap.DRAWS)
            out[result.config.seed] = draws
    return out
