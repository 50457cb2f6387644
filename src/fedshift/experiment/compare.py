"""Compare methods x scenarios x seeds: skip finished runs, survive divergence, run in parallel.

Users and the command line call :func:`compare`. Several runs are executed side by side, one process
each; a single run gets all processes for its clients. How many processes there are must never
change a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedshift.base.errors import ConfigError, DivergedError, UnknownNameError
from fedshift.base.process import cores, tune_process
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.data.federation import Federation
from fedshift.engine.build import build_net
from fedshift.engine.federation import federate
from fedshift.engine.preflight import check_needs
from fedshift.evaluate.protocols import require_a_score, scored_at_sites
from fedshift.experiment.budget import matched_rounds
from fedshift.experiment.clusters import cluster
from fedshift.experiment.estimate import estimate, worth_a_warm_up
from fedshift.experiment.executors import Here, require_executor, scheduled
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.identity import configure_run, of_older_data
from fedshift.experiment.listener import Listener
from fedshift.experiment.pausing import Paused, Pausing, shortened, so_far
from fedshift.experiment.progress import Watch, watching
from fedshift.experiment.references import PREFIX, with_local
from fedshift.experiment.references import references as reference_rows
from fedshift.experiment.run import execute
from fedshift.experiment.scenario import find_scenario
from fedshift.experiment.session import Options
from fedshift.experiment.side_by_side import Processes, QueueListener
from fedshift.report.results import Comparison, Failure, RunResult

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One run to execute, or to read if it is finished."""

    config: RunConfig
    method: Method
    path: Path | None
    until: int | None = None  # pause after this round; None: play all

    @property
    def done(self) -> bool:
        """Whether it is finished on disk."""
        return self.path is not None and (self.path / "summary.json").exists()


def compare(  # noqa: PLR0913  every choice by keyword
    methods: str | Method | Sequence[str | Method],
    scenarios: str | Scenario | Sequence[str | Scenario] = ("digits",),
    *,
    seeds: Sequence[int] = (0,),
    out: Path | str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    references: bool = False,
    against: str | None = None,
    quiet: bool = False,
    executor: str = "local",
    executor_options: Mapping[str, Any] | None = None,
    tune: int | None = None,
    **changes: Any,
) -> Comparison:
    """Train every method in every scenario with every seed, and put the results side by side.

    Args:
        methods: expressions such as ``"fedprox[mu=0.1]"`` or ``"fedavg + mixup"``, or methods; one
            of them, or a list.
        scenarios: names or scenarios; one of them, or a list.
        seeds: one run per seed.
        out: folder of run directories; finished runs in it are read and not repeated, unfinished
            ones are continued.
        workers: number of processes; None takes one per core. Several runs are executed side by
            side, one process each; a single run uses the processes to visit its clients.
        watch: makes a listener for each run, in place of the default display.
        references: add what is reached without federated learning: the most frequent class, the
            method ``local``, one model on pooled data, and for tables logistic regression and
            gradient boosting on pooled data.
        against: a method, as tables call it; they then have every other one's difference to it.
        quiet: show no progress.
        executor: where the runs are played: ``local``, ``ray`` or ``slurm``; the last two need
            ``out`` in a folder that all machines see.
        executor_options: what the executor takes, such as ``{"slurm_partition": "cpu"}``.
        tune: give every method so many trials: its defaults and settings drawn around them, played
            with the first seed. The best on validation data is compared, and tables say so.
        **changes: other values of the scenarios, ``rounds=10``.
    """
    if isinstance(seeds, int):
        raise ConfigError(f"seeds is {seeds}; it takes a list such as [0, 1, 2], or range({seeds})")
    require_executor(executor, out)
    chosen = [find_scenario(scenario, **changes) for scenario in listed(scenarios)]
    if tune is not None:
        from fedshift.experiment.tuning import tuned  # noqa: PLC0415  it calls compare

        with watching(quiet=quiet or watch is not None) as default:
            return tuned(
                listed(methods),
                chosen,
                tune,
                watch=watch or default,
                workers=workers or cores(),
                executor={"executor": executor, "options": executor_options},
                seeds=list(seeds),
                out=out,
                references=references,
                against=against,
            )
    wanted = with_local(listed(methods)) if references else listed(methods)
    jobs = plan(wanted, chosen, seeds, out)
    require_reference(against, jobs, references=references)
    count = workers or (cores() if executor == "local" else len(jobs))
    found: dict[str, RunResult | Failure] = {}
    beside: list[RunResult] = []
    with watching(quiet=quiet or watch is not None) as default:
        playing = played(jobs, watch or default, count, executor=executor, options=executor_options)
        for job, outcome in playing:
            found[job.config.name] = outcome
        for scenario, seed in product(chosen, seeds) if references else ():
            kept = Path(out) if out is not None else None
            beside += reference_rows(scenario, seed, kept, watch or default, count)
    ordered = [found[job.config.name] for job in jobs]
    return Comparison(
        [*(r for r in ordered if isinstance(r, RunResult)), *beside],
        [r for r in ordered if isinstance(r, Failure)],
        Path(out) if out is not None else None,
        of_older_data(Path(out), [job.config for job in jobs]) if out is not None else [],
        against,
    )


def require_reference(against: str | None, jobs: Sequence[Job], *, references: bool) -> None:
    """Raise, before anything is trained, if no run of the comparison is called ``against``."""
    known = dict.fromkeys(job.config.label for job in jobs)
    row = references and str(against).startswith(PREFIX)
    if against is not None and against not in known and not row:
        raise UnknownNameError.of("method of this comparison", against, known)


def estimates(
    methods: str | Method | Sequence[str | Method],
    scenarios: str | Scenario | Sequence[str | Scenario] = ("digits",),
    *,
    seeds: Sequence[int] = (0,),
    out: Path | str | None = None,
    cheaply: bool = False,
) -> list[tuple[Estimate, int]]:
    """What a comparison will take: per method and scenario an estimate, and its runs left to do.

    ``cheaply`` returns nothing if a warm-up would cost more than a little of the runs.
    """
    chosen = [find_scenario(scenario) for scenario in listed(scenarios)]
    jobs = plan(listed(methods), chosen, seeds, out)
    todo: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        same = todo.setdefault((job.config.label, job.config.scenario.model_dump_json()), [])
        if not job.done:
            same.append(job)
    left = [own for own in todo.values() if own]
    if cheaply and not all(worth_a_warm_up(own[0].config, len(own)) for own in left):
        return []
    return [(estimate(own[0].config, own[0].method), len(own)) for own in left]


def listed(given: str | T | Sequence[str | T]) -> Sequence[str | T]:
    """Several things, or one by itself: a text is one name and not a sequence of characters."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given]
    return given


def plan(
    methods: Sequence[str | Method],
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    out: Path | str | None,
) -> list[Job]:
    """List all runs and check each before the first one starts; equal runs appear once.

    A run that is finished in ``out`` under another name, such as ``fedprox`` where
    ``fedprox[mu=1]`` is wanted and 1 is the default, is the same run and is read there.
    """
    jobs: dict[str, Job] = {}
    known = finished_in(Path(out)) if out is not None else {}
    for scenario in scenarios:
        federation = federate(scenario, seeds[0])
        rounds = matched_rounds(methods, scenario)
        data: str | None = None
        for method, seed in product(methods, seeds):
            own = scenario.change(rounds=rounds[method])
            config, whole = configure_run(method, own, seed=seed, data=data)
            data = config.data
            check_needs(whole, own, len(federation.sites))
            if seed == seeds[0]:
                check_scores(config, whole, federation)
            path = Path(out) / config.name if out is not None else None
            if path is not None and not path.exists():
                path = known.get(config.fingerprint, path)
            jobs.setdefault(config.name, Job(config, whole, path))
    return list(jobs.values())


def check_scores(config: RunConfig, method: Method, federation: Federation) -> None:
    """Raise if no protocol can be scored; the net is built only where that may be."""
    if not scored_at_sites(method, config.scenario):
        net = build_net(config, method, federation)
        require_a_score(config.label, method, config.scenario, net)


def finished_in(out: Path) -> dict[str, Path]:
    """The finished runs of a folder by the hash at the end of their names."""
    return {file.parent.name.rpartition("-")[2]: file.parent for file in out.glob("*/summary.json")}


def played(
    jobs: Sequence[Job],
    watch: Watch,
    workers: int,
    *,
    executor: str = "local",
    options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Job, RunResult | Failure]]:
    """Execute runs and yield each as it finishes; those that are done are read.

    On this machine several run side by side, one process each; a single one uses all processes for
    its clients. Elsewhere (``ray``, ``slurm``; ``options`` are theirs) at most ``workers`` runs are
    under way at a time, and nothing is told of their rounds here.
    """
    if executor != "local":
        far = [replace(j, path=j.path.absolute() if j.path else None) for j in jobs]
        yield from scheduled(far, cluster(executor, _attempt_alone, workers, options or {}, far))
        return
    several = min(workers, len(jobs))
    listeners = _listeners(jobs, watch)
    if several > 1:
        yield from scheduled(jobs, Processes(_attempt_remotely, several, listeners, jobs))
    else:
        yield from scheduled(
            jobs, Here(lambda job: _attempt(job, listeners[job.config.name], workers))
        )


def _attempt(job: Job, listener: Listener, workers: int = 1) -> RunResult | Failure:
    """Execute one run; divergence is a result of the comparison and does not end it.

    One that is to pause is played up to that round, if it has not come so far already.
    """
    until = job.until if job.until and job.until < job.config.scenario.rounds else None
    if until is not None:
        if (held := so_far(job.config, job.path, until)) is not None:
            return held
        listener = Pausing(listener, until)
    options = Options(resume=True, transport="auto", listener=listener, workers=workers)
    try:
        # The label is the one that was asked for, whatever the run was called when it was played.
        return replace(execute(job.config, job.method, job.path, options), config=job.config)
    except Paused:
        held = so_far(job.config, job.path, until or 0)
        assert held is not None
        listener.finished(held)
        return held
    except DivergedError as error:
        return Failure(job.config, str(error))


def _attempt_remotely(job: Job) -> RunResult | Failure:
    """Execute one run in a worker process of this machine."""
    return _attempt(job, QueueListener(job.config.name))


def _attempt_alone(job: Job) -> RunResult | Failure:
    """Execute one run in a process that nobody listens to; it may be on another machine."""
    torch.set_num_threads(1)
    tune_process()
    return _attempt(job, Listener())


def _listeners(jobs: Sequence[Job], watch: Watch) -> dict[str, Listener]:
    """A listener for each run; those that are finished already have nothing to tell."""
    return {
        j.config.name: Listener() if j.done else watch(shortened(j.config, j.until)) for j in jobs
    }
