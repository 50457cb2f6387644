"""Compare methods x scenarios x seeds: skip finished runs, survive divergence, run in parallel.

Users and the command line call :func:`compare`. Several runs are executed side by side, one process
each; a single run gets all processes for its clients. How many processes there are must never
change a number.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedshift.base.errors import ConfigError, DivergedError, RunError, UnknownNameError
from fedshift.base.process import cores, tune_process
from fedshift.core.config import RunConfig
from fedshift.core.message import Lost, Update
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.engine.federation import federate
from fedshift.engine.preflight import check_needs
from fedshift.engine.spawn import end_if_repeated, needs_script, why_ended, without_script
from fedshift.experiment.budget import matched_rounds
from fedshift.experiment.estimate import estimate, worth_a_warm_up
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.identity import configure_run, of_older_data
from fedshift.experiment.listener import Listener
from fedshift.experiment.progress import Watch, watching
from fedshift.experiment.references import PREFIX, with_local
from fedshift.experiment.references import references as reference_rows
from fedshift.experiment.run import execute
from fedshift.experiment.scenario import find_scenario
from fedshift.experiment.session import Options
from fedshift.report.results import Comparison, Failure, RunResult
from fedshift.runs.record import Row

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One run to execute, or to read if it is finished."""

    config: RunConfig
    method: Method
    path: Path | None

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
        **changes: other values of the scenarios, ``rounds=10``.
    """
    if isinstance(seeds, int):
        raise ConfigError(f"seeds is {seeds}; it takes a list such as [0, 1, 2], or range({seeds})")
    chosen = [find_scenario(scenario, **changes) for scenario in listed(scenarios)]
    wanted = with_local(listed(methods)) if references else listed(methods)
    jobs = plan(wanted, chosen, seeds, out)
    require_reference(against, jobs, references=references)
    count = workers or cores()
    found: dict[str, RunResult | Failure] = {}
    beside: list[RunResult] = []
    with watching(quiet=quiet or watch is not None) as default:
        for job, outcome in played(jobs, watch or default, count):
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
    """List all runs and check each before the first one starts; equal runs appear once."""
    jobs: dict[str, Job] = {}
    for scenario in scenarios:
        clients = len(federate(scenario, seeds[0]).sites)
        rounds = matched_rounds(methods, scenario)
        for method in methods:
            own = scenario.change(rounds=rounds[method])
            for seed in seeds:
                config, whole = configure_run(method, own, seed=seed)
                check_needs(whole, own, clients)
                path = Path(out) / config.name if out is not None else None
                jobs.setdefault(config.name, Job(config, whole, path))
    return list(jobs.values())


def played(
    jobs: Sequence[Job], watch: Watch, workers: int
) -> Iterator[tuple[Job, RunResult | Failure]]:
    """Execute runs and yield each as it finishes; those that are done are read.

    Several run side by side, one process each; a single one uses all processes for its clients.
    """
    several = min(workers, len(jobs)) > 1
    yield from (_side_by_side if several else _one_by_one)(jobs, watch, workers)


def _attempt(job: Job, listener: Listener, workers: int = 1) -> RunResult | Failure:
    """Execute one run; divergence is a result of the comparison and does not end it."""
    options = Options(resume=True, transport="auto", listener=listener, workers=workers)
    try:
        return execute(job.config, job.method, job.path, options)
    except DivergedError as error:
        return Failure(job.config, str(error))


def _one_by_one(
    jobs: Sequence[Job], watch: Watch, workers: int
) -> Iterator[tuple[Job, RunResult | Failure]]:
    """Execute the runs one after another from this process, each with all the workers."""
    listeners = _listeners(jobs, watch)
    for job in jobs:
        yield job, _attempt(job, listeners[job.config.name], workers)


def _listeners(jobs: Sequence[Job], watch: Watch) -> dict[str, Listener]:
    """A listener for each run; those that are finished already have nothing to tell."""
    return {j.config.name: Listener() if j.done else watch(j.config) for j in jobs}


def _side_by_side(
    jobs: Sequence[Job], watch: Watch, workers: int
) -> Iterator[tuple[Job, RunResult | Failure]]:
    """Execute whole runs in worker processes of one torch thread; yields them as they finish.

    Progress and results take different routes. A result is the return value of its task. Progress
    is put on a queue by each worker's :class:`Speaker`, and a thread here (:func:`_relay`) passes
    it to the listeners, since bars and notebook cells can be drawn by this process only.

    Processes are spawned rather than forked, because a fork of a process with torch threads may
    hang. The executor starts them inside ``submit``; hence ``without_script`` encloses those calls.
    """
    end_if_repeated()
    needed = needs_script(jobs)
    context = multiprocessing.get_context("spawn")
    queue: Queue[Any] = context.Queue()
    listeners = _listeners(jobs, watch)
    with (
        _relay(queue, listeners),
        ProcessPoolExecutor(min(workers, len(jobs)), context, _set_up, (queue,)) as pool,
    ):
        with without_script(unless=needed):
            futures: dict[Future[RunResult | Failure], Job] = {
                pool.submit(_attempt_remotely, job): job for job in jobs
            }
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                why = why_ended(needed_script=needed)
                raise RunError(f"a process of the comparison ended; {why}") from None


@contextmanager
def _relay(queue: Queue[Any], listeners: dict[str, Listener]) -> Iterator[None]:
    """Pass progress reports from the queue to the listeners, in a thread, while the block runs.

    A None on the queue ends the thread. It is put there after the worker processes have ended, so
    every report has been passed on when the block is left.
    """

    def pump() -> None:
        while (item := queue.get()) is not None:
            name, hook, args = item
            getattr(listeners[name], hook)(*args)

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    try:
        yield
    finally:
        queue.put(None)
        thread.join()


_QUEUE: Queue[Any] | None = None  # to the parent; set once, when a worker process starts


def _set_up(queue: Queue[Any]) -> None:
    """Initialise a worker process: its queue, one torch thread, process settings."""
    global _QUEUE  # noqa: PLW0603  a queue can reach an executor's process only by initialiser
    _QUEUE = queue
    torch.set_num_threads(1)
    tune_process()


def _attempt_remotely(job: Job) -> RunResult | Failure:
    """Execute one run in a worker process."""
    return _attempt(job, QueueListener(job.config.name))


class QueueListener(Listener):
    """A listener in a worker process that puts every call on the queue to the parent."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _forward(self, hook: str, *args: Any) -> None:
        """Put the hook's name and arguments on the queue, under the name of the run."""
        if _QUEUE is not None:
            _QUEUE.put((self.name, hook, args))

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Forward the start of a run."""
        self._forward("started", config, clients, first_round)

    def replied(self, update: Update) -> None:
        """Forward a reply without its tensors, which stay in this process."""
        short = Update(update.client, update.task, update.round, metrics=update.metrics)
        self._forward("replied", short)

    def lost(self, lost: Lost) -> None:
        """Forward a loss."""
        self._forward("lost", lost)

    def round_done(self, row: Row) -> None:
        """Forward the row of a committed round."""
        self._forward("round_done", row)

    def expected(self, estimate: Estimate) -> None:
        """Forward what the run takes in all."""
        self._forward("expected", estimate)

    def finished(self, result: RunResult) -> None:
        """Forward the result."""
        self._forward("finished", result)
