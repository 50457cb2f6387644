"""Experiment trackers: a run's losses and scores in TensorBoard or MLflow, live or afterwards.

``run`` and ``compare`` add a :class:`TrackedRun` to their listeners, and :func:`export` logs the
directories of old runs. Both libraries are extras. A tracker is a view: the run directory stays the
unit of truth, and a tracker that fails must never end or change a run.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedshift.base import extras
from fedshift.base.errors import UnknownNameError
from fedshift.base.logs import log
from fedshift.core.config import RunConfig, flat
from fedshift.core.message import Lost, Update
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.listener import Listener
from fedshift.experiment.progress import Watch
from fedshift.report.results import RunResult
from fedshift.runs.record import Row, read_config, read_lines, read_summary

NAMES = ("tensorboard", "mlflow")


class Sink(Protocol):
    """Where numbers go."""

    def begin(self, config: RunConfig) -> bool:
        """Open the run of that name; whether it was there before."""
        ...

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers of a round."""
        ...

    def end(self) -> None:
        """The run is finished."""
        ...


def scalars_of(row: Row) -> dict[str, float]:
    """The finite numbers of a round by name: ``loss/TERM``, ``PROTOCOL/test/avg``, time, ..."""
    found = {f"loss/{term}": value for term, value in row.get("losses", {}).items()}
    for protocol, splits in row.get("scores", {}).items():
        for split, scores in splits.items():
            names = ("avg", "std", "all", "worst", "loss")
            found |= {f"{protocol}/{split}/{name}": scores[name] for name in names}
            domains = scores["domains"].items()
            found |= {f"{protocol}/{split}/domain/{name}": value for name, value in domains}
    for key in ("seconds", "seconds_scoring"):
        if key in row:
            found[f"time/{key}"] = row[key]
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def settings_of_run(config: RunConfig) -> dict[str, str]:
    """What a run is, as names and texts."""
    scenario = {f"scenario.{key}": value for key, value in flat(config.scenario).items()}
    head = {"method": config.label, "scenario": config.scenario_label, "seed": config.seed}
    return {key: str(value) for key, value in (head | scenario).items()}


class TrackedRun(Listener):
    """Passes a run's rounds to a sink; if that fails, it says so once and the run goes on."""

    def __init__(self, sink: Sink, name: str) -> None:
        self.sink, self.name, self.failed, self.losses = sink, name, False, 0

    def _try(self, action: Callable[[], object]) -> None:
        if self.failed:
            return
        try:
            action()
        except Exception as error:  # the tracker's, whatever it is
            self.failed = True
            told = (str(error).splitlines() or [type(error).__name__])[0]
            log.warning("logging to %s failed and is left out from here: %s", self.name, told)

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:  # noqa: ARG002
        """Open the run there."""
        self._try(lambda: self.sink.begin(config))

    def lost(self, lost: Lost) -> None:
        """Count the sites that were lost."""
        self.losses += 1
        self._try(lambda: self.sink.scalars({"sites/lost": float(self.losses)}, lost.round))

    def round_done(self, row: Row) -> None:
        """Add the round's numbers."""
        self._try(lambda: self.sink.scalars(scalars_of(row), row["round"]))

    def finished(self, result: RunResult) -> None:  # noqa: ARG002
        """Close the run there."""
        self._try(self.sink.end)


class Listeners(Listener):
    """Several listeners as one."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Tell all of them."""
        for one in self.listeners:
            one.started(config, clients, first_round)

    def replied(self, update: Update) -> None:
        """Tell all of them."""
        for one in self.listeners:
            one.replied(update)

    def lost(self, lost: Lost) -> None:
        """Tell all of them."""
        for one in self.listeners:
            one.lost(lost)

    def round_done(self, row: Row) -> None:
        """Tell all of them."""
        for one in self.listeners:
            one.round_done(row)

    def expected(self, estimate: Estimate) -> None:
        """Tell all of them."""
        for one in self.listeners:
            one.expected(estimate)

    def finished(self, result: RunResult) -> None:
        """Tell all of them."""
        for one in self.listeners:
            one.finished(result)


class TensorBoard:
    """Event files below a folder, one sub-folder per run."""

    def __init__(self, folder: Path) -> None:
        extras.require(
            "tensorboard", "logging to TensorBoard needs tensorboard", '"fedshift[tensorboard]"'
        )
        self.folder = folder
        self.writer: Any = None

    def begin(self, config: RunConfig) -> bool:
        """Open an event file; one that is resumed gets a further file."""
        own = self.folder / config.name
        there = own.is_dir() and any(own.iterdir())
        summary = importlib.import_module("tensorboard.summary")
        self.writer = summary.Writer(str(own))
        return there

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers, visible at once."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self) -> None:
        """Close the event file."""
        self.writer.close()


class Mlflow:
    """A run of the tracking server that ``MLFLOW_TRACKING_URI`` names, else of a local folder.

    Scenarios are experiments. A run has its own name and the tag ``fedshift.run``, by which one
    that is resumed is found again.
    """

    def __init__(self, folder: Path) -> None:
        extras.require("mlflow", "logging to MLflow needs mlflow", '"fedshift[mlflow]"')
        mlflow = importlib.import_module("mlflow")
        self.entities = importlib.import_module("mlflow.entities")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or folder.absolute().as_uri()
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        self.run = ""

    def begin(self, config: RunConfig) -> bool:
        """Find the run by its tag, or create it with its parameters."""
        known = self.client.get_experiment_by_name(config.scenario.name)
        home = known.experiment_id if known else self.client.create_experiment(config.scenario.name)
        found = self.client.search_runs([home], f"tags.`fedshift.run` = '{config.name}'")
        if found:
            self.run = found[0].info.run_id
            return True
        tags = {"fedshift.run": config.name}
        self.run = self.client.create_run(home, run_name=config.name, tags=tags).info.run_id
        told = settings_of_run(config).items()
        params = [self.entities.Param(mlflow_name(key), value[:500]) for key, value in told]
        self.client.log_batch(self.run, params=params)
        return False

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers in one request."""
        now = int(time.time() * 1000)
        metrics = [
            self.entities.Metric(mlflow_name(name), value, now, step)
            for name, value in values.items()
        ]
        self.client.log_batch(self.run, metrics=metrics)

    def end(self) -> None:
        """Mark the run as finished."""
        self.client.set_terminated(self.run)


def mlflow_name(name: str) -> str:
    """A name of the characters that MLflow takes.

    >>> mlflow_name("personal/test/domain/São")
    'personal/test/domain/S_o'
    """
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)


def sink(name: str, out: Path) -> Sink:
    """The tracker of that name; local files are in ``out/NAME``."""
    if name not in NAMES:
        raise UnknownNameError.of("tracker", name, NAMES)
    return TensorBoard(out / name) if name == "tensorboard" else Mlflow(out / name)


def tracked(watch: Watch, names: Sequence[str], out: Path) -> Watch:
    """A listener factory that also logs to trackers; raises at once if one cannot be used."""
    for name in names:
        sink(name, out)

    def both(config: RunConfig) -> Listener:
        return Listeners(watch(config), *(TrackedRun(sink(name, out), name) for name in names))

    return both if names else watch


def export(paths: Sequence[Path], name: str, out: Path) -> Iterator[tuple[Path, bool]]:
    """Log runs that have been played; yields each with whether it was new there.

    What is there already is left as it is.
    """
    for path in paths:
        config, place = read_config(path), sink(name, out)
        there = place.begin(config)
        if not there:
            for row in read_lines(path / "metrics.jsonl"):
                place.scalars(scalars_of(row), row["round"])
            if read_summary(path) is not None:
                place.end()
        yield path, not there
