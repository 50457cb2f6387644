"""Sweep the parameters of a method: every combination, random ones, or a guided search.

Users and the command line call :func:`sweep`. Its runs are those of ``compare``: the same folder,
the same names, finished ones are read and unfinished ones continued, so repeating a sweep with a
further value plays that value only. The setting is chosen on validation data (``report.sweeps``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.process import cores
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.experiment.compare import Job, plan, played
from fedshift.experiment.executors import require_executor
from fedshift.experiment.points import Axis, Point, axis_of, drawn, grid, point
from fedshift.experiment.progress import Watch, watching
from fedshift.experiment.scenario import find_scenario
from fedshift.report.results import Failure, RunResult
from fedshift.report.sweeps import Sweep, Trial

Outcome = RunResult | Failure


def sweep(  # noqa: PLR0913  every choice by keyword
    method: str | Method,
    scenario: str | Scenario = "digits",
    *,
    over: Mapping[str, Any],
    seeds: Sequence[int] = (0,),
    random: int | None = None,
    optuna: int | None = None,
    search_seed: int = 0,
    protocol: str | None = None,
    out: Path | str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    quiet: bool = False,
    executor: str = "local",
    executor_options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Sweep:
    """Train a method with several settings, and choose one on validation data.

    Args:
        method: an expression such as ``"fedprox"`` or ``"fedavg + mixup"``, or a method.
        scenario: a name, or a scenario.
        over: by parameter its values, ``{"mu": [0.01, 0.1], "scenario.lr": [0.1, 0.3]}``; or a
            range as text, ``"0.001:1:log"`` or ``"0:1"``, for ``random`` and ``optuna``.
        seeds: one run per setting and seed.
        random: draw so many settings instead of taking every combination.
        optuna: let Optuna propose so many settings, one after another; those that fall behind on
            validation data are given up after a few rounds. Needs the extra ``sweep``.
        search_seed: of the settings that are drawn or proposed.
        protocol: whose validation score counts; by default the scenario's first.
        out: folder of run directories, as in :func:`compare`.
        workers: number of processes; None takes one per core.
        watch: makes a listener for each run, in place of the default display.
        quiet: show no progress.
        executor: where the runs are played, as in :func:`compare`.
        executor_options: what the executor takes.
        **changes: other values of the scenario, ``rounds=10``.
    """
    search = Search.of(
        method,
        find_scenario(scenario, **changes),
        over,
        seeds=seeds,
        protocol=protocol,
        out=out,
        seed=search_seed,
    )
    require_executor(executor, out)
    require_count(random, optuna)
    with watching(quiet=quiet or watch is not None) as default:
        shown = watch or default
        if optuna is not None:
            from fedshift.experiment.guided import guided  # noqa: PLC0415  Optuna is an extra

            if executor != "local":
                raise ConfigError(
                    f"Optuna proposes one setting after another, and executor is {executor!r}; "
                    "draw settings at random instead",
                    "random=N",
                )
            trials = guided(search, optuna, shown, workers or cores())
            return search.result(trials, f"proposed by Optuna, seed {search_seed}")
        points = search.points(random)
        jobs = search.plan(points)
        every = {job.config.name: job for own in jobs for job in own}
        count = workers or (cores() if executor == "local" else len(every))
        found = dict[str, Outcome]()
        playing = played(
            list(every.values()), shown, count, executor=executor, options=executor_options
        )
        for job, outcome in playing:
            found[job.config.name] = outcome
    trials = [
        trial_of(one, [found[job.config.name] for job in own])
        for one, own in zip(points, jobs, strict=True)
    ]
    return search.result(trials, search.how(random))


@dataclass(frozen=True)
class Search:
    """What a sweep looks for, and where its runs are kept."""

    method: str | Method
    scenario: Scenario
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    protocol: str
    out: Path | None
    seed: int

    @classmethod
    def of(  # noqa: PLR0913  as :func:`sweep`
        cls,
        method: str | Method,
        scenario: Scenario,
        over: Mapping[str, Any],
        *,
        seeds: Sequence[int] = (0,),
        protocol: str | None = None,
        out: Path | str | None = None,
        seed: int = 0,
    ) -> Search:
        """A search from a user's values; raises if they do not fit."""
        if isinstance(seeds, int):
            raise ConfigError(f"seeds is {seeds}; it takes a list such as [0, 1, 2]")
        if not over:
            raise ConfigError("a sweep has at least one axis, and none is given", "over=KEY=VALUES")
        if scenario.selection == "oracle":
            raise ConfigError(
                "selection is oracle, which looks at test data, and a sweep chooses on validation "
                "data; set another rule",
                "scenario.selection=validation",
            )
        if protocol is not None and protocol not in scenario.protocols:
            raise UnknownNameError.of("protocol of this scenario", protocol, scenario.protocols)
        axes = tuple(axis_of(key, given) for key, given in over.items())
        wanted = protocol or scenario.protocols[0]
        kept = Path(out) if out is not None else None
        return cls(method, scenario, axes, tuple(seeds), wanted, kept, seed)

    def points(self, random: int | None) -> list[Point]:
        """Every combination, or so many drawn at random; each is checked."""
        given = grid(self.axes) if random is None else drawn(self.axes, random, self.seed)
        return [point(self.method, self.scenario, values) for values in given]

    def how(self, random: int | None) -> str:
        """How the points were found, as text."""
        return "grid" if random is None else f"drawn at random, seed {self.seed}"

    def plan(self, points: Sequence[Point]) -> list[list[Job]]:
        """The runs of each point, one per seed; data are dealt out once per scenario."""
        found: dict[tuple[str, int], Job] = {}
        for scenario in dict.fromkeys(p.scenario.model_dump_json() for p in points):
            own = [p for p in points if p.scenario.model_dump_json() == scenario]
            for job in plan([p.method for p in own], [own[0].scenario], self.seeds, self.out):
                content = Point((), job.method, job.config.scenario).content
                found.setdefault((content, job.config.seed), job)
        return [[found[p.content, seed] for seed in self.seeds] for p in points]

    def result(self, trials: list[Trial], how: str) -> Sweep:
        """The trials as the result of the sweep; raises if none can be chosen."""
        label = self.method if isinstance(self.method, str) else _label(self.method)
        made = Sweep(label, self._scenario_label(), self.protocol, how, trials, self.out)
        _ = made.best
        return made

    def _scenario_label(self) -> str:
        """The scenario with its changes; those of axes are in the table."""
        return RunConfig(method="", composition={}, scenario=self.scenario).scenario_label


def _label(method: Method) -> str:
    return " + ".join([p.name for p in method.parts] or [method.aggregate.name])


def require_count(*counts: int | None) -> None:
    """Raise if both ways to search are asked for, or none of a positive length."""
    given = [count for count in counts if count is not None]
    if len(given) > 1:
        raise ConfigError("random and optuna are two ways to search; choose one")
    if given and given[0] < 1:
        raise ConfigError(f"{given[0]} settings are none; ask for one or more")


def trial_of(one: Point, outcomes: Sequence[Outcome], pruned: int | None = None) -> Trial:
    """A point with what became of its runs."""
    method = one.method if isinstance(one.method, str) else _label(one.method)
    runs = tuple(o for o in outcomes if isinstance(o, RunResult))
    failures = tuple(o.reason for o in outcomes if isinstance(o, Failure))
    return Trial(one.values, method, runs, failures, pruned)
