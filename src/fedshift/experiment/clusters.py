"""Runs on other machines: as tasks of a Ray cluster, or as SLURM jobs through submitit.

``experiment.compare`` calls :func:`cluster`. All machines must see the folder of the runs under the
same path, have fedshift installed and the data prepared. Nothing comes back but results: progress
is in the run directories, where ``fedshift watch`` reads it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.engine.spawn import needs_script
from fedshift.experiment.executors import Executor, Futures, Playable, WorkerLostError

SLURM = {"timeout_min": 24 * 60, "cpus_per_task": 1}  # what a job asks for unless told otherwise
PAUSE = 0.2  # seconds between two questions whether a job has ended


def cluster(
    name: str,
    work: Callable[[Any], Any],
    slots: int,
    options: Mapping[str, Any],
    jobs: Sequence[Playable],
) -> Executor[Any, Any]:
    """The executor of that name, ``ray`` or ``slurm``."""
    if needs_script(jobs):
        raise ConfigError(
            f"the executor {name} cannot bring what your script defines to other machines; put it "
            "into a file that FEDSHIFT_PLUGINS names"
        )
    if name == "ray":
        return RayTasks(work, slots, options)
    folders = [job.path.parent for job in jobs if job.path is not None]
    return SlurmJobs(work, slots, options, folders[0] / "slurm" if folders else Path("slurm"))


def guarded(work: Callable[[Any], Any], job: Any) -> Any:
    """The outcome of a run, or our error as a value: executors would wrap it in theirs."""
    try:
        return work(job)
    except FedshiftError as error:
        return error


class RayTasks(Futures):
    """Tasks of a Ray cluster: that of ``RAY_ADDRESS`` or ``address=``, or one on this machine."""

    def __init__(self, work: Callable[[Any], Any], slots: int, options: Mapping[str, Any]) -> None:
        self.ray = importlib.import_module("ray")
        super().__init__(slots)
        given = dict(options)
        need = {
            "num_cpus": given.pop("cpus_per_task", 1),
            "num_gpus": given.pop("gpus_per_task", 0),
        }
        self.ours = not self.ray.is_initialized()
        if self.ours:
            if "address" not in given and "RAY_ADDRESS" not in os.environ:
                given = {"address": "local", "num_cpus": slots, "include_dashboard": False} | given
            self.ray.init(log_to_driver=False, configure_logging=False, **given)
        self.task = self.ray.remote(max_retries=0, **need)(guarded)
        self.work = work

    def start(self, job: Any) -> Future[Any]:
        """Begin a run where there is room."""
        found: Future[Any] = self.task.remote(self.work, job).future()
        return found

    def lost(self, error: Exception, job: Any) -> Exception:
        """A run whose worker or node died is lost; an error of the task itself is returned."""
        errors = self.ray.exceptions
        if isinstance(error, errors.RayError) and not isinstance(error, errors.RayTaskError):
            return WorkerLostError(f"{job.path} lost its worker: {_first_line(error)}")
        return error

    def close(self) -> None:
        """Leave the cluster, if we have joined it."""
        if self.ours:
            self.ray.shutdown()


class SlurmJobs:
    """SLURM jobs, one per run; submitit keeps their scripts and logs in ``folder``.

    ``options`` are submitit's parameters (``slurm_partition``, ``timeout_min``, ``mem_gb``, ...).
    ``cluster`` is one of them: ``slurm`` by default, ``local`` plays the jobs as processes here,
    ``debug`` in this process.
    """

    def __init__(
        self, work: Callable[[Any], Any], slots: int, options: Mapping[str, Any], folder: Path
    ) -> None:
        submitit = importlib.import_module("submitit")
        given = {**SLURM, **options}
        kind = str(given.pop("cluster", "slurm"))
        if kind == "slurm" and shutil.which("sbatch") is None:
            raise ConfigError(
                "there is no SLURM here (no sbatch); start this on a machine that submits jobs, or "
                "let cluster=local stand in"
            )
        self.executor = submitit.AutoExecutor(folder=folder, cluster=kind)
        try:
            self.executor.update_parameters(**given)
        except (NameError, TypeError, ValueError) as error:
            raise ConfigError(
                f"submitit does not take these options: {_first_line(error)}"
            ) from None
        self.work, self.slots = work, slots
        self.jobs: list[tuple[Any, Any]] = []  # submitit's and ours

    def submit(self, job: Any) -> None:
        """Queue a run."""
        self.jobs.append((self.executor.submit(guarded, self.work, job), job))

    def collect(self, seconds: float) -> list[tuple[Any, Any]]:
        """The runs whose jobs have ended, or nothing after some seconds."""
        ends = time.monotonic() + seconds
        while not (ended := [pair for pair in self.jobs if pair[0].done()]):
            if time.monotonic() > ends:
                return []
            time.sleep(PAUSE)
        self.jobs = [pair for pair in self.jobs if pair not in ended]
        return [(job, _result_of(handle, job)) for handle, job in ended]

    def close(self) -> None:
        """Cancel the jobs whose results nobody waits for any more."""
        for handle, _ in self.jobs:
            handle.cancel()


def _result_of(handle: Any, job: Any) -> Any:
    try:
        return handle.result()
    except Exception as error:  # submitit's, for whatever ended the job
        return WorkerLostError(f"{job.path} lost its job {handle.job_id}: {_last_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
