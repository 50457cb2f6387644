"""Runs with planted numbers in place of training: written and read as real ones, in no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedshift.core.config import RunConfig
from fedshift.engine.compute import Compute
from fedshift.evaluate.metrics import Metrics
from fedshift.report.load import load_run
from fedshift.report.results import RunResult
from fedshift.runs.record import config_json, read_lines
from fedshift.runs.summary import summarise

Numbers = Callable[[RunConfig, int], tuple[float, float]]  # validation and test in a round


def metrics(value: float) -> dict:
    domains = {"dark": value - 1, "bright": value + 1}
    return Metrics(value, 2**0.5, value, value - 1, 1.0, domains, {}).to_json()


def begun(config: RunConfig, path: Path | None) -> list[dict]:
    """The rounds that a run has in its directory, which is made if there is none."""
    if path is None or (path / "metrics.jsonl").exists():
        return read_lines(path / "metrics.jsonl") if path is not None else []
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_json(config, Compute())))
    (path / "metrics.jsonl").write_text("")
    return []


def planted(numbers: Numbers, played: list[str], rounds: list[tuple[str, int]] | None = None):
    """A stand-in for ``execute``: ``numbers`` says what each round scores.

    A run that was begun goes on after its last round. ``rounds`` notes every round that is played.
    """

    def execute(config: RunConfig, method, path: Path | None, options=None) -> RunResult:
        if path is not None and (path / "summary.json").exists():
            return load_run(path)
        played.append(config.name)
        history = begun(config, path)
        listener = options.listener
        listener.started(config, 4, len(history) + 1)
        protocols = dict.fromkeys(("personal", "global", *config.scenario.protocols))
        for round_ in range(len(history) + 1, config.scenario.rounds + 1):
            val, test = numbers(config, round_)
            scores = {p: {"val": metrics(val), "test": metrics(test)} for p in protocols}
            history.append({"round": round_, "losses": {}, "seconds": 1.0, "scores": scores})
            if rounds is not None:
                rounds.append((config.name, round_))
            if path is not None:
                with (path / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps(history[-1]) + "\n")
            listener.round_done(history[-1])
        traffic = {"train": {"up": 1, "down": 1}, "total": {"up": 1, "down": 1}}
        facts = {"clients": 4, "parameters": 1, "shares": {}, "bytes": traffic, "seconds": 1.0}
        summary = summarise(config, history, **facts)
        if path is not None:
            (path / "summary.json").write_text(json.dumps(summary))
        result = RunResult(config, history, summary, path)
        listener.finished(result)
        return result

    return execute
