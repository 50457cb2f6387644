"""Runs as files for any scheduler: ``fedshift run FILE`` plays one, wherever the folder is seen.

The command line prints such commands for ``compare`` and ``sweep`` in place of playing. A run file
is complete, so it gives exactly the same run, with the same name; that is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedshift.base.errors import ConfigError
from fedshift.engine.compute import Compute
from fedshift.experiment.compare import Job
from fedshift.experiment.identity import configure_run
from fedshift.experiment.run import method_of, scenario_of
from fedshift.runs.run_file import read_run_file, write_run_file

FOLDER = "jobs"  # beside the runs


def job_files(jobs: Iterable[Job]) -> list[tuple[Path, Path]]:
    """Write a run file for each run that is not finished; returns files and run directories."""
    return [_written(job) for job in jobs if not job.done]


def _written(job: Job) -> tuple[Path, Path]:
    if job.path is None:
        raise ConfigError("commands for a scheduler need a folder of runs", "out=DIR")
    if not job.config.replayable:
        raise ConfigError(
            "the method is a Python object, which no command can name; give an expression"
        )
    file = job.path.parent / FOLDER / f"{job.config.name}.toml"
    write_run_file(file.parent, job.config, Compute(), file.name)
    require_same(job, file)
    return file, job.path


def require_same(job: Job, file: Path) -> None:
    """Raise if a run file would give another run."""
    held = read_run_file(file)
    again, _ = configure_run(
        method_of(held, str(file)),
        scenario_of(held),
        seed=held.seed,
        settings=held.settings,
        without=held.without,
        data=job.config.data,
    )
    if again.name != job.config.name:
        raise ConfigError(f"{file} would give the run {again.name} and not {job.config.name}")
