"""Where whole runs are executed: in processes here, on a Ray cluster, or as SLURM jobs.

``compare`` and whatever shares its loop hand their runs to :func:`scheduled`. A run is one
directory whose name is its content, so any worker on any machine that sees the folder can play it.
Two promises hold on every executor. No run is played twice: one that another process or machine is
playing is waited for and then read. A run whose worker was lost is begun again by another one,
which continues after its last finished round, at most ``ATTEMPTS`` times in all.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fedshift.base import extras
from fedshift.base.errors import ConfigError, RunError, UnknownNameError
from fedshift.base.locks import FolderTakenError, writer_of
from fedshift.base.logs import log

ATTEMPTS = 3  # of one run, if its workers are lost
LOOK = 2.0  # seconds between two looks at runs that others play
NAMES = ("local", "ray", "slurm")


class Playable(Protocol):
    """A run to execute."""

    @property
    def path(self) -> Path | None:
        """Its directory; None keeps it in memory."""
        ...

    @property
    def done(self) -> bool:
        """Whether it is finished on disk."""
        ...


J = TypeVar("J", bound=Playable)
R = TypeVar("R")


class WorkerLostError(RunError):
    """A worker ended without a result: it was killed, or its machine went away."""


class Executor(Protocol[J, R]):
    """Plays runs somewhere, ``slots`` at a time."""

    slots: int

    def submit(self, job: J) -> None:
        """Hand a run over; returns at once."""
        ...

    def collect(self, seconds: float) -> list[tuple[J, R | Exception]]:
        """The runs that have ended since, or nothing after some seconds; errors are returned."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...


def require_executor(name: str, out: Path | str | None) -> None:
    """Raise, before anything is planned, if runs cannot be executed there."""
    if name not in NAMES:
        raise UnknownNameError.of("executor", name, NAMES)
    if name == "ray":
        extras.require("ray", "the executor ray needs Ray", '"fedshift[flower]"')
    if name == "slurm":
        extras.require("submitit", "the executor slurm needs submitit", '"fedshift[slurm]"')
    if name != "local" and out is None:
        raise ConfigError(f"the executor {name} needs a folder that all machines see", "out=DIR")


def scheduled(jobs: Sequence[J], executor: Executor[J, R]) -> Iterator[tuple[J, R]]:
    """Play every run and yield each as it ends; closes the executor.

    Runs that somebody else plays are looked at from time to time: when they are finished they are
    read, and when their writer is gone they are ours.
    """
    queue = Waiting(jobs)
    busy = 0
    try:
        while queue.ready or queue.elsewhere or busy:
            while queue.ready and busy < executor.slots:
                executor.submit(queue.ready.popleft())
                busy += 1
            for job, outcome in executor.collect(LOOK) if busy else ():
                busy -= 1
                if isinstance(outcome, Exception):
                    queue.put_back(job, outcome)
                else:
                    yield job, outcome
            queue.look(patiently=not busy and not queue.ready)
    finally:
        executor.close()


class Waiting(Generic[J]):
    """The runs that are still to be played, and those that somebody else plays."""

    def __init__(self, jobs: Sequence[J]) -> None:
        self.ready, self.elsewhere = deque(jobs), list[J]()
        self.attempts: Counter[int] = Counter()

    def put_back(self, job: J, error: Exception) -> None:
        """Try a run again whose worker was lost or that is taken; any other error is raised."""
        if isinstance(error, FolderTakenError):
            self.elsewhere.append(job)
            return
        if not isinstance(error, WorkerLostError):
            raise error
        self.attempts[id(job)] += 1
        if self.attempts[id(job)] >= ATTEMPTS:
            raise RunError(f"{error}; it was tried {ATTEMPTS} times")
        log.warning("%s; another one continues it", error)
        self.ready.append(job)

    def look(self, *, patiently: bool) -> None:
        """Take the runs that nobody else plays any more, after a pause if there is nothing else."""
        if not self.elsewhere:
            return
        if patiently:
            time.sleep(LOOK)
        free = [job for job in self.elsewhere if job.done or not _is_written(job.path)]
        self.elsewhere = [job for job in self.elsewhere if job not in free]
        self.ready += free


def _is_written(path: Path | None) -> bool:
    writer = writer_of(path) if path is not None else None
    return writer is not None and writer.alive


class Here:
    """Plays runs one after another in this very process."""

    slots = 1

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work, self.ended = work, list[tuple[Any, Any]]()

    def submit(self, job: Any) -> None:
        """Play the run now; that another process plays it is a result, any other error ends all."""
        try:
            self.ended.append((job, self.work(job)))
        except FolderTakenError as taken:
            self.ended.append((job, taken))

    def collect(self, seconds: float) -> list[tuple[Any, Any]]:  # noqa: ARG002
        """The run that was just played."""
        found, self.ended = self.ended, []
        return found

    def close(self) -> None:
        """Do nothing."""


class Futures:
    """Base of executors whose runs are ``concurrent.futures``."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.futures: dict[Future[Any], Any] = {}

    def start(self, job: Any) -> Future[Any]:
        """Begin a run."""
        raise NotImplementedError

    def lost(self, error: Exception, job: Any) -> Exception:
        """The error of a run; a :class:`WorkerLostError` if its worker is gone."""
        raise NotImplementedError

    def submit(self, job: Any) -> None:
        """Begin a run."""
        self.futures[self.start(job)] = job

    def collect(self, seconds: float) -> list[tuple[Any, Any]]:
        """Runs that have ended, or nothing after some seconds."""
        ended, _ = wait(self.futures, seconds, FIRST_COMPLETED)
        return [self._outcome(future) for future in ended]

    def _outcome(self, future: Future[Any]) -> tuple[Any, Any]:
        job = self.futures.pop(future)
        try:
            return job, future.result()
        except Exception as error:
            return job, self.lost(error, job)

    def close(self) -> None:
        """Let go of everything."""
