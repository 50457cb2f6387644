"""Check what `fedshift advise` takes: against the full comparison that it stands for.

    python scripts/advise_check.py run [--minutes 40] [--scenario NAME]
    python scripts/advise_check.py page               from results/advise.jsonl alone

For each scenario: the advice, and then its whole shortlist with every setting at all rounds on the
same three seeds. The regret is the test number of the best setting minus that of the advice, seed
by seed, in units of that difference's standard error; the best is found on test data, which
flatters it. Cost is what the runs of both took. Each finished run is a line of
results/advise.jsonl and is never repeated: the same command goes on, here or elsewhere. Real data
are read from FEDSHIFT_SOURCES.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedshift
from fedshift.base.process import tune_process
from fedshift.claims.store import Results
from fedshift.core.scenario import Scenario
from fedshift.experiment.compare import plan, played
from fedshift.experiment.listener import Listener
from fedshift.experiment.scenario import scenario_from
from fedshift.guide.advise import Advising, Constraints
from fedshift.guide.advise_contest import (
    Candidate,
    Contest,
    Lane,
    admitted,
    candidates,
    others,
    seconds_taken,
    suited,
)
from fedshift.guide.shortlist import question_of
from fedshift.report.formats import markdown_table
from fedshift.report.results import RunResult

ROOT = Path(__file__).parents[1]
STORE, RUNS = ROOT / "results" / "advise.jsonl", ROOT / "runs" / "advise"
PAGE = ROOT / "docs" / "tables" / "advise.md"
SEEDS = (1, 2, 3)
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A scenario and the question that is asked of it."""

    scenario: str
    question: str
    scale: str | None = None
    changes: Row = field(default_factory=dict)

    @property
    def given(self) -> Scenario:
        """The scenario as the advice gets it."""
        fair = {"selection": "validation"}
        return scenario_from(self.scenario, self.scale, None, fair | self.changes)

    @property
    def out(self) -> Path:
        """Where its runs are."""
        return RUNS / self.scenario.replace("/", "-")


CASES = (  # cheapest first
    Case("fedka/amazon/books", "unlabelled", "laptop"),
    Case("digits/label-skew", "single"),
    Case("digits/personal", "per-site"),
    Case("digits/unseen", "unseen"),
    Case("digits/global", "single"),
    Case("csac/rotated-mnist/deg75", "unseen", "laptop"),
)


def make(told: argparse.Namespace) -> None:
    """Make what is missing, scenario by scenario, until the time is over."""
    tune_process()
    store = Results.open(STORE)
    ends = time.monotonic() + 60 * told.minutes
    for case in CASES:
        if told.scenario in (None, case.scenario) and time.monotonic() < ends:
            advised(case, store)
            full(case, store, ends)


def advised(case: Case, store: Results) -> None:
    """The advice, if it is not in the store."""
    name = f"advice for {case.question} in {case.scenario}"
    if name in store.rows:
        return
    found = fedshift.advise(
        case.given, question=case.question, out=case.out, workers=1, quiet=True, tell=say
    )
    row = {"run": name, "scenario": case.scenario, "question": case.question}
    row |= {"method": found.method, "verdict": found.verdict, "rounds": found.rounds}
    store.add(row | {"seconds": found.seconds, "said": found.sentences[0]})
    say(found.sentences[0])


def say(line: str) -> None:
    """A line with the time of day."""
    print(f"{time.strftime('%H:%M')} {line}", flush=True)


def contest_of(case: Case) -> Contest:
    """The contest of the advice, whose scenario and scoring the full comparison has too."""
    question, given = question_of(case.question), case.given
    fitting, _ = suited(question, given, "none")
    first = Contest(question, fitting, case.out, 1, lambda _: Listener())
    return Advising(first, Constraints(), len(SEEDS), given, say).whole(given.rounds)[0]


def entrants(contest: Contest) -> list[Candidate]:
    """Every setting of every method of the shortlist that can be played."""
    fit, _ = admitted(candidates(contest.question.entries, "none"), contest.search[0])
    return [c for one in fit for c in (one, *others(one, "none"))]


def full(case: Case, store: Results, ends: float) -> None:
    """The runs of the full comparison that are missing."""
    contest = contest_of(case)
    every = entrants(contest)
    head = f"entrants in {case.scenario}"
    if head not in store.rows:
        store.add({"run": head, "methods": [c.method for c in every]})
    for lane in (Lane(contest.scenario, seed) for seed in SEEDS):
        for job in plan([c.method for c in every], [lane.scenario], [lane.seed], case.out):
            if job.config.name in store.rows or time.monotonic() > ends:
                continue
            ((_, outcome),) = played([job], contest.watch, 1)
            row = {"run": job.config.name, "scenario": case.scenario}
            row |= {"method": job.config.method, "seed": lane.seed}
            if isinstance(outcome, RunResult):
                row["test"] = outcome.accuracy(contest.question.protocol)
                row["rounds"], row["seconds"] = contest.scenario.rounds, seconds_taken(outcome)
            else:
                row["why"] = outcome.reason
            store.add(row)
            say(f"{job.config.name} {row.get('test', 'diverged')}")


def page() -> None:
    """Write the table of the cases that are complete, and say which are not."""
    store = Results.open(STORE)
    rows, missing = [], []
    for case in CASES:
        line = line_of(case, store)
        (rows if isinstance(line, list) else missing).append(line)
    heads = ["scenario", "question", "advice", "test", "best setting", "test of the best"]
    heads += ["regret", "in standard errors", "cost: rounds", "cost: time"]
    told = [f"- {m}" for m in missing]
    text = markdown_table(heads, rows) if rows else ""
    text += "\nNot complete, so not in the table:\n\n" + "\n".join(told) + "\n" if told else ""
    PAGE.write_text(text)


def line_of(case: Case, store: Results) -> list[str] | str:
    """A case's line, or its name with how much of it is there."""
    own = [r for r in store.rows.values() if r.get("scenario") == case.scenario]
    head = store.rows.get(f"entrants in {case.scenario}")
    advice = store.rows.get(f"advice for {case.question} in {case.scenario}")
    runs = {(r["method"], r["seed"]): r for r in own if "seed" in r}
    wanted = [(m, s) for m in (head or {"methods": []})["methods"] for s in SEEDS]
    left = [key for key in wanted if key not in runs]
    if advice is None or head is None or left:
        return missing_of(case, advice, len(wanted), len(left))
    tests = dict(scored(head["methods"], runs))
    best = max(tests, key=lambda m: statistics.fmean(tests[m]))
    mean, errors = regret(tests[best], tests[advice["method"]])
    rounds, seconds = (sum(r.get(k, 0) for r in runs.values()) for k in ("rounds", "seconds"))
    return [
        f"`{case.scenario}`",
        case.question,
        f"`{advice['method']}`",
        f"{statistics.fmean(tests[advice['method']]):.1f}",
        f"`{best}`",
        f"{statistics.fmean(tests[best]):.1f}",
        f"{mean:.1f}",
        f"{errors:.1f}",
        f"{advice['rounds'] / rounds:.2f}",
        f"{advice['seconds'] / seconds:.2f}",
    ]


def missing_of(case: Case, advice: Row | None, wanted: int, left: int) -> str:
    """What there is of a case that is not complete; what the advice cost in rounds is known."""
    if advice is None:
        return f"`{case.scenario}`: nothing yet"
    share = advice["rounds"] / (wanted * case.given.rounds)
    return (
        f"`{case.scenario}`: {wanted - left} of {wanted} runs of the full comparison. The advice, "
        f"`{advice['method']}`, took {advice['rounds']} rounds, {share:.2f} of all these runs'"
    )


def scored(methods: Sequence[str], runs: dict[tuple[str, int], Row]) -> Iterator[tuple[str, Any]]:
    """The test numbers of each method that has one for every seed."""
    for method in methods:
        values = [runs[method, seed].get("test") for seed in SEEDS]
        if all(isinstance(v, float) and not math.isnan(v) for v in values):
            yield method, values


def regret(best: Sequence[float], own: Sequence[float]) -> tuple[float, float]:
    """The mean difference over seeds, and that in units of its standard error."""
    lost = [a - b for a, b in zip(best, own, strict=True)]
    mean = statistics.fmean(lost)
    error = statistics.stdev(lost) / math.sqrt(len(lost))
    return mean, mean / error if error else (0.0 if mean == 0 else math.inf)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    runner = actions.add_parser("run")
    runner.add_argument("--minutes", type=float, default=40)
    runner.add_argument("--scenario")
    actions.add_parser("page")
    told = parser.parse_args()
    make(told) if told.action == "run" else page()


if __name__ == "__main__":
    main()
