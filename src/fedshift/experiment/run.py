"""One run from Python: configure it, execute or resume it, return the result.

Users call :func:`run`; the command line and comparisons call :func:`execute` with a complete
configuration. The rounds themselves are up to ``experiment.session``. A finished run in the output
folder must never be repeated or overwritten: it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError, RunError, UnknownNameError
from fedshift.base.files import is_part
from fedshift.base.locks import only_writer
from fedshift.base.process import one_thread
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.core.server import Policy
from fedshift.engine.compute import Compute
from fedshift.experiment.identity import configure_run, same_but_data, same_run
from fedshift.experiment.listener import Listener
from fedshift.experiment.predictions import keep_predictions
from fedshift.experiment.progress import watching
from fedshift.experiment.scenario import NESTED, complete_scenario, find_scenario, scenario_from
from fedshift.experiment.session import Options, play, prepare
from fedshift.report.results import RunResult
from fedshift.runs.record import read_config, read_lines, read_summary
from fedshift.runs.run_file import RunFile, read_run_file
from fedshift.transports import TRANSPORTS


def run(  # noqa: PLR0913  every choice of a run, by keyword
    method: str | Method,
    scenario: str | Scenario = "digits",
    *,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    without: Sequence[str] = (),
    out: Path | str | None = None,
    resume: bool = False,
    transport: str = "inprocess",
    workers: int | None = None,
    compute: Compute | None = None,
    listener: Listener | None = None,
    policy: Policy | None = None,
    quiet: bool = False,
    **changes: Any,
) -> RunResult:
    """Train one method in one scenario and score it.

    Args:
        method: an expression such as ``"fedavg + mixup"``, or a :class:`Method`.
        scenario: a scenario's name, or a :class:`Scenario`.
        seed: seed of initialisation, partition, cohorts and batches.
        settings: hyper-parameters of the method, ``{"mu": 0.1}``.
        without: parts to leave out.
        out: the run directory; None keeps everything in memory.
        resume: continue an unfinished run in ``out``.
        transport: ``inprocess``, ``pool`` (worker processes, the same numbers; a script that
            defines parts or data of its own needs the usual ``if __name__ == "__main__"``),
            ``auto`` (a pool if there are at least two workers) or ``wire`` (for tests).
        workers: number of processes of the pool; None takes one per core.
        compute: device, memory layout and compilation; by default the CPU.
        listener: receives progress reports in place of the default display.
        policy: what to do when a site is lost, ``Policy(on_loss="skip", min_sites=3)``.
        quiet: show no progress. By default a terminal gets bars, a notebook a table that
            updates itself, and elsewhere the log ``fedshift`` a line per round.
        **changes: other values of the scenario, ``rounds=10, lr=0.1``.
    """
    config, whole = configure_run(
        method,
        find_scenario(scenario, **changes),
        seed=seed,
        settings=settings,
        without=tuple(without),
    )
    path = Path(out) if out is not None else None
    with watching(quiet=quiet or listener is not None) as watch:
        options = Options(
            resume,
            transport,
            listener or watch(config),
            workers,
            policy or Policy(),
            compute or Compute(),
        )
        return execute(config, whole, path, options)


def run_file(path: Path | str, **options: Any) -> RunResult:
    """Execute a run file, such as the ``experiment.toml`` of a run directory.

    Args:
        path: the file, or a run directory.
        **options: arguments of :func:`run` other than method and scenario (``out``, ``transport``,
            ``quiet``, ...); ``seed``, ``settings`` and values of the scenario replace the file's.
    """
    file = read_run_file(Path(path))
    given: dict[str, Any] = {
        "seed": file.seed,
        "settings": file.settings,
        "without": file.without,
        "compute": file.compute,
    }
    return run(method_of(file, str(path)), scenario_of(file), **(given | options))


def method_of(file: RunFile, source: str) -> str:
    """The method's expression; raises if the method was given as a Python object."""
    if not file.replayable:
        raise ConfigError(
            f"the method of {source} was a Python object; give it again with "
            "fedshift.run(method, ...)"
        )
    return file.method


def scenario_of(file: RunFile) -> Scenario:
    """The scenario of a run file: a name, a name with changes, or a complete table."""
    if isinstance(file.scenario, str):
        return scenario_from(file.scenario, file.scale, list(file.allow), {})
    table = dict(file.scenario)
    if "data" in table:
        return scenario_from(complete_scenario(table), None, list(file.allow), {})
    name = table.pop("name", "digits")
    if not isinstance(name, str):
        raise ConfigError(f"scenario.name is {name!r}; it takes the name of a scenario")
    for owner in NESTED:
        nested = table.pop(owner, None) or {}
        if not isinstance(nested, dict):
            raise ConfigError(f"scenario.{owner} is {nested!r}; it takes a table with a kind")
        table |= {f"{owner}.{key}": value for key, value in nested.items()}
    return scenario_from(name, file.scale, list(file.allow), table)


def execute(
    config: RunConfig, method: Method, path: Path | None, options: Options | None = None
) -> RunResult:
    """Execute a configured run; a run that is already finished in ``path`` is read instead.

    The folder is locked meanwhile, so that two processes never write the same run.
    """
    options = options or Options()
    if isinstance(options.transport, str) and options.transport not in {*TRANSPORTS, "auto"}:
        raise UnknownNameError.of("transport", options.transport, {*TRANSPORTS, "auto"})
    if path is not None and (done := finished(config, path, resume=options.resume)):
        return done
    config = as_begun(config, path)
    with one_thread(), only_writer(path) if path is not None else nullcontext():
        session = prepare(config, method, path, options)
        federation = session.federation.to("cpu")
        try:
            return play(session, lambda result: keep_predictions(result, method, federation))
        finally:
            session.transport.close()


def as_begun(config: RunConfig, path: Path | None) -> RunConfig:
    """The configuration under which the run in ``path`` was begun, if it was.

    One from before data had fingerprints keeps none: nobody knows what its data were.
    """
    begun = path is not None and (path / "config.json").exists()
    old = path is not None and begun and not read_config(path).data
    return config.model_copy(update={"data": ""}) if old else config


def finished(config: RunConfig, path: Path, *, resume: bool) -> RunResult | None:
    """The result in ``path`` if that run is done; an error if the folder holds something else."""
    if not path.exists() or all(is_part(file) for file in path.iterdir()):
        return None
    if not (path / "config.json").exists():
        raise RunError(f"{path} is not empty and holds no run; choose another out", "out=DIR")
    held = read_config(path)
    if not same_run(held, config):
        other = "the same run on other data" if same_but_data(held, config) else "another run"
        raise RunError(f"{path} holds {other}, {held.name}; choose another out", "out=DIR")
    if summary := read_summary(path):
        return RunResult(held, read_lines(path / "metrics.jsonl"), summary, path)
    if not resume:
        rows = read_lines(path / "metrics.jsonl")
        raise RunError(
            f"{path} holds this run, unfinished after round {rows[-1]['round'] if rows else 0} of "
            f"{config.scenario.rounds}; continue it with resume=True",
            "resume",
        )
    return None
