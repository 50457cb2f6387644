"""``advise``: which method to take, after a short comparison that fits a question and its limits.

Users and the command line call :func:`advise`. Methods are given up by successive halving on one
seed (``guide.halving``); what is left is compared with FedAvg on seeds that chose nothing, so the
difference that is told is no lucky draw of the search. Everything is chosen on validation data; the
test number of the one that is taken is looked at once, in the end. All runs are those of
``compare``, in one folder: what was played is read, and an advice that was interrupted continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from fedshift.base.errors import ConfigError, DivergedError, UnknownNameError
from fedshift.base.files import read_json, write_json
from fedshift.base.logs import log
from fedshift.base.process import cores
from fedshift.base.times import duration
from fedshift.core.scenario import Scenario
from fedshift.experiment.progress import Watch, watching
from fedshift.experiment.run import scenario_of
from fedshift.experiment.scenario import find_scenario
from fedshift.guide.advise_contest import (
    Candidate,
    Contest,
    Lane,
    Tried,
    admitted,
    candidates,
    others,
    seconds_taken,
    suited,
    warmed_up,
)
from fedshift.guide.advise_result import Advice, advice_of
from fedshift.guide.halving import KEPT, TUNED, Schedule, affordable, often_enough
from fedshift.guide.shortlist import (
    FEDAVG,
    LOCAL,
    PRIVACY,
    SMALLER,
    question_of,
)
from fedshift.report.results import RunResult, cell_of
from fedshift.runs.run_file import read_run_file

Tell = Callable[[str], None]
PLAN = "plan.json"


@dataclass(frozen=True)
class Constraints:
    """What an advice has to keep to."""

    max_bytes: float | None = None  # that a site sends in a whole run
    privacy: str = "none"
    minutes: float | None = None  # for all of it


def advise(  # noqa: PLR0913  every choice by keyword
    scenario: str | Path | Scenario = "digits",
    *,
    question: str,
    max_bytes: float | None = None,
    privacy: str = "none",
    minutes: float | None = None,
    seeds: int = 3,
    out: Path | str = "advice",
    workers: int | None = None,
    watch: Watch | None = None,
    tell: Tell = log.info,
    quiet: bool = False,
    **changes: Any,
) -> Advice:
    """Say which method to take: a short comparison of those that fit a question.

    Args:
        scenario: a scenario's or data set's name, a :class:`Scenario`, or a run file, whose
            scenario is taken.
        question: ``single`` (the best model for all), ``per-site`` (the best at each site),
            ``unseen`` (at a site that took no part), ``unlabelled`` (at one without labels).
        max_bytes: what one site may send in a whole run; methods that send more are left out.
        privacy: ``local-dp``, ``secure-aggregation`` or ``central-dp`` is added to every method;
            those that it does not cover are left out.
        minutes: for all of it; fewer rounds are played if they do not fit.
        seeds: on which the best is compared with FedAvg in the end.
        out: folder of the runs, of ``advice.md`` and of the run file ``advice.toml``.
        workers: runs at a time; None takes one per core.
        watch: makes a listener for each run, in place of the default display.
        tell: receives a line per step; by default the log ``fedshift``.
        quiet: show no progress.
        **changes: other values of the scenario, ``rounds=10``.
    """
    asked, limits = question_of(question), Constraints(max_bytes, privacy, minutes)
    require(limits, seeds)
    given = scenario_for(scenario, changes)
    fitting, notes = suited(asked, given, privacy)
    with watching(quiet=quiet or watch is not None) as default:
        contest = Contest(asked, fitting, Path(out), workers or cores(), watch or default)
        return Advising(contest, limits, seeds, given, tell).advice(notes)


def require(limits: Constraints, seeds: int) -> None:
    """Raise, before anything is played, if a limit is none."""
    if limits.privacy not in PRIVACY:
        raise UnknownNameError.of("kind of privacy", limits.privacy, PRIVACY)
    if seeds < 1:
        raise ConfigError(f"seeds is {seeds}; it takes a number from 1 on", "seeds=3")
    for name, value in (("max_bytes", limits.max_bytes), ("minutes", limits.minutes)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name} is {value:g}; it takes a number above 0")


def scenario_for(given: str | Path | Scenario, changes: dict[str, Any]) -> Scenario:
    """The scenario of that name, or that of a run file."""
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".toml")):
        given = scenario_of(read_run_file(Path(given)))
    return find_scenario(given, **changes)


@dataclass(frozen=True)
class Advising:
    """An advice under way."""

    contest: Contest
    limits: Constraints
    seeds: int
    given: Scenario  # as the user gave it
    tell: Tell

    def advice(self, notes: list[str]) -> Advice:
        """Admit, search, confirm, and say what was found; writes the files."""
        entrants, left_out, short = self._planned()
        contest, schedule = self.whole(short)
        every = self._search(contest, schedule, entrants)
        finals = self._confirm(contest, schedule, every)
        advice = advice_of(
            contest,
            schedule,
            every,
            finals,
            left_out,
            given=self.given,
            limits=asdict(self.limits),
            notes=[*notes, *shorter(short, self.given.rounds)],
        )
        advice = advice.tested(self._test(contest, advice.method, finals))
        advice.write(contest.out)
        return advice

    def whole(self, rounds: int) -> tuple[Contest, Schedule]:
        """The contest and its schedule, with the rounds that fit."""
        own = self.contest
        every = often_enough(rounds, own.scenario.evaluate_every)
        scenario = own.scenario.change(rounds=rounds, evaluate_every=every)
        schedule = Schedule.of(rounds, every, lanes=len(own.search), seeds=self.seeds)
        changed = Contest(own.question, scenario, own.out, own.workers, own.watch)
        return changed, schedule

    def _planned(self) -> tuple[list[Candidate], list[tuple[str, str]], int]:
        """Who takes part, who does not and why, and the rounds of a run.

        What a clock has decided is kept: the same question in the same folder is decided alike.
        """
        question, lane = self.contest.question, self.contest.search[0]
        more = SMALLER if self.limits.max_bytes else ()
        wanted = candidates([*question.entries, *more], self.limits.privacy)
        fit, left_out = admitted(wanted, lane)
        if self.limits.max_bytes is None and self.limits.minutes is None:
            return fit, left_out, self.given.rounds
        return self._within(fit, left_out, lane)

    def _within(
        self, fit: list[Candidate], left_out: list[tuple[str, str]], lane: Lane
    ) -> tuple[list[Candidate], list[tuple[str, str]], int]:
        """The same within the limits of bytes and time."""
        file, key = self.contest.out / PLAN, self._key(fit, lane)
        kept = read_json(file) if file.exists() else {}
        if kept.get("key") != key:
            began, most = monotonic(), self.limits.max_bytes
            found = warmed_up(fit, lane, self.tell)
            sites = {name: e.up / max(1, e.clients) for name, e in found.items()}
            big = {} if most is None else {n: up for n, up in sites.items() if up > most}
            inside = [one for one in fit if one.method not in big or one.entry.method == FEDAVG]
            rounds = self._rounds([found[one.method] for one in inside], inside, began)
            kept = {"key": key, "sends": big, "rounds": rounds}
            write_json(file, kept)
        for method, up in kept["sends"].items():
            why = f"a site would send {up:.3g} bytes, and may send {self.limits.max_bytes:.3g}"
            left_out.append((method, why))
        out = {n for n in kept["sends"] if n != candidates_name(fit, FEDAVG)}
        return [one for one in fit if one.method not in out], left_out, int(kept["rounds"])

    def _rounds(self, estimates: Sequence[Any], fit: Sequence[Candidate], began: float) -> int:
        """The rounds that the time allows."""
        if self.limits.minutes is None:
            return self.given.rounds
        _, schedule = self.whole(self.given.rounds)
        more = TUNED * max(len(one.entry.values) for one in fit)
        left = 60 * self.limits.minutes - (monotonic() - began)
        return affordable(schedule, estimates, more, left, self.contest.workers)

    def _key(self, fit: Sequence[Candidate], lane: Lane) -> dict[str, Any]:
        """What a plan was made for."""
        return {
            "limits": asdict(self.limits),
            "methods": [one.method for one in fit],
            "scenario": lane.scenario.model_dump(mode="json"),
            "seeds": self.seeds,
        }

    def _search(
        self, contest: Contest, schedule: Schedule, entrants: Sequence[Candidate]
    ) -> list[Tried]:
        """Give methods up until one is left; returns all that were tried, as far as they came."""
        privacy = self.limits.privacy
        first, *later = schedule.rungs
        self._step("methods", len(entrants), first, schedule)
        tried = contest.play(entrants, contest.search, first)
        more = [o for t in contest.best(tried, TUNED) for o in others(t.candidate, privacy)]
        self._left(tried, schedule, len(more))
        if more:
            self._step("settings of the best", len(more), first, schedule)
            tried += contest.play(more, contest.search, first)
        every = {t.candidate: t for t in tried}
        for count, rung in zip(KEPT, later, strict=False):
            on = [t.candidate for t in (*baselines(tried), *contest.best(tried, count))]
            self._step("best", len(on), rung, schedule)
            tried = contest.play(on, contest.search, rung)
            every |= {t.candidate: t for t in tried}
        return [*every.values()]

    def _confirm(self, contest: Contest, schedule: Schedule, every: Sequence[Tried]) -> list[Tried]:
        """Play the best one and FedAvg to the end on fresh seeds; local too, if it is not behind.

        A FedAvg that sends too much stays as the reference and is never taken.
        """
        last = [t for t in every if t.rounds == max(one.rounds for one in every)]
        base = {t.candidate.entry.method: t for t in baselines(last)}
        level = contest.cell(base[FEDAVG]).mean
        on = [base[FEDAVG]]
        on += [b for b in [base.get(LOCAL)] if b and contest.cell(b).mean >= level]
        on += contest.best(last, KEPT[-1])
        self._step("to the end, each on fresh seeds", len(on), schedule.rounds, schedule)
        lanes = contest.final(self.seeds)
        finals = contest.play([t.candidate for t in on], lanes, schedule.rounds)
        for one in finals:
            one.final = True
        if finals[0].diverged:
            raise DivergedError("FedAvg diverged, so nothing can be compared; lower scenario.lr")
        return finals

    def _test(
        self, contest: Contest, method: str, finals: Sequence[Tried]
    ) -> tuple[Any, Sequence[RunResult]]:
        """The test number of the one that is taken: the only look at test data."""
        (taken,) = (t for t in finals if t.candidate.method == method)
        results = taken.results
        if contest.question.left_out:
            self._step("the chosen one, in the domain asked about", 1, contest.scenario.rounds)
            lane = Lane(contest.scenario, 1)
            results = contest.play([taken.candidate], [lane], lane.scenario.rounds)[0].results
        return cell_of(results, contest.question.protocol, "avg"), results

    def _step(self, what: str, count: int, until: int, schedule: Schedule | None = None) -> None:
        """Say what is played next."""
        whole = schedule.rounds if schedule else until
        self.tell(f"{what}: {count}, to round {until} of {whole}")

    def _left(self, tried: Sequence[Tried], schedule: Schedule, more: int) -> None:
        """Say how long the rest will take, by the rounds so far."""
        runs = [run for t in tried for run in t.results]
        each = sum(map(seconds_taken, runs)) / max(1, len(runs) * schedule.rungs[0])
        base = len(baselines(tried))
        done = schedule.lanes * len(tried) * schedule.rungs[0]
        left = schedule.searched(len(tried), more, base) - done + schedule.confirmed(1 + base)
        together = min(self.contest.workers, schedule.seeds * (1 + base))
        self.tell(f"about {duration(each * left / together)} left in all")


def baselines(tried: Sequence[Tried]) -> list[Tried]:
    """FedAvg and local training, which are never given up."""
    return [t for t in tried if t.candidate.entry.baseline]


def candidates_name(fit: Sequence[Candidate], method: str) -> str:
    """How a method of the shortlist is typed here, with what privacy adds."""
    return next(one.method for one in fit if one.entry.method == method)


def shorter(rounds: int, wanted: int) -> list[str]:
    """A note if the time did not allow all rounds."""
    if rounds == wanted:
        return []
    return [
        f"{rounds} of {wanted} rounds were played, as many as the time allows: methods that gain "
        "late are underrated."
    ]
