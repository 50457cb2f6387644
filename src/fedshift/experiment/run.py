"""One run from Python: configure, play or resume, return the result.

``run`` is what users call, ``execute`` what the command line and comparisons call with a
configuration that is complete. Neither knows how a round is played (``session``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedshift.base.errors import RunError, UnknownNameError
from fedshift.base.files import only_writer
from fedshift.base.process import one_thread
from fedshift.core.config import RunConfig, configure
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.core.server import Policy
from fedshift.engine.compute import Compute
from fedshift.experiment.listener import Listener
from fedshift.experiment.scenario import find_scenario
from fedshift.experiment.session import Options, play, prepare
from fedshift.report.results import RunResult
from fedshift.runs.record import read_config, read_lines, read_summary
from fedshift.transports import TRANSPORTS


def run(  # noqa: PLR0913  the whole of a run, by keyword
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
    **changes: Any,
) -> RunResult:
    """Train one method in one scenario and score it.

    Args:
        method: an expression such as ``"fedavg + mixup"``, or a :class:`Method`.
        scenario: a scenario's name, or a :class:`Scenario`.
        seed: of initialisation, partition, cohorts and batches.
        settings: hyper-parameters of the method, ``{"mu": 0.1}``.
        without: parts to leave out.
        out: the run directory; None keeps everything in memory.
        resume: continue an unfinished run in ``out``.
        transport: ``inprocess``, ``pool`` (worker processes, the same numbers; a script that
            defines parts or data of its own needs the usual ``if __name__ == "__main__"``),
            ``auto`` (a pool if it has two workers) or ``wire`` (for tests).
        workers: processes of the pool; None takes one per core.
        compute: device, memory layout and compilation; by default the processor.
        listener: hears of progress.
        policy: what to do when a site is lost, ``Policy(on_loss="skip", min_sites=3)``.
        **changes: other values of the scenario, ``rounds=10, lr=0.1``.
    """
    config, whole = configure(
        method,
        find_scenario(scenario, **changes),
        seed=seed,
        settings=settings,
        without=tuple(without),
    )
    path = Path(out) if out is not None else None
    options = Options(
        resume,
        transport,
        listener or Listener(),
        workers,
        policy or Policy(),
        compute or Compute(),
    )
    return execute(config, whole, path, options)


def execute(
    config: RunConfig, method: Method, path: Path | None, options: Options | None = None
) -> RunResult:
    """Play a configured run; what is already finished in ``path`` is read, not played again."""
    options = options or Options()
    if isinstance(options.transport, str) and options.transport not in {*TRANSPORTS, "auto"}:
        raise UnknownNameError.of("transport", options.transport, {*TRANSPORTS, "auto"})
    if path is not None and (done := finished(config, path, resume=options.resume)):
        return done
    with one_thread(), only_writer(path) if path is not None else nullcontext():
        session = prepare(config, method, path, options)
        try:
            return play(session)
        finally:
            session.transport.close()


def finished(config: RunConfig, path: Path, *, resume: bool) -> RunResult | None:
    """The result in ``path`` if that run is done; an error if the folder holds something else."""
    if not path.exists() or not any(path.iterdir()):
        return None
    if not (path / "config.json").exists():
        raise RunError(f"{path} is not empty and holds no run; choose another --out")
    held = read_config(path)
    if held.fingerprint != config.fingerprint:
        raise RunError(f"{path} holds another run, {held.name}; choose another --out")
    if summary := read_summary(path):
        return RunResult(held, read_lines(path / "metrics.jsonl"), summary, path)
    if not resume:
        rows = read_lines(path / "metrics.jsonl")
        raise RunError(
            f"{path} holds this run, unfinished after round {rows[-1]['round'] if rows else 0} of "
            f"{config.scenario.rounds}; add --resume to continue it"
        )
    return None


def load_result(path: Path) -> RunResult:
    """A finished run from its directory."""
    config = read_config(path)
    summary = read_summary(path)
    if summary is None:
        raise RunError(
            f"{path} is not finished; continue it with fedshift run --resume --out {path}"
        )
    return RunResult(config, read_lines(path / "metrics.jsonl"), summary, path)
