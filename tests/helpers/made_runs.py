"""Finished runs with numbers that tests can compute by hand; nothing is trained."""

from __future__ import annotations

import json
import statistics

from fedshift.core.config import configure
from fedshift.evaluate.metrics import Metrics
from fedshift.report.results import Comparison, RunResult
from fedshift.runs.summary import summarise
from fedshift.testing import tiny_scenario

# test accuracies of (dark, bright) after rounds 1, 2 and 3, by method and seed
MADE = {
    "fedavg": {0: [(50, 60), (70, 80), (80, 90)], 1: [(52, 60), (71, 84), (60, 70)]},
    "fedprox": {0: [(40, 60), (60, 70), (90, 99)], 1: [(42, 58), (64, 72), (70, 70)]},
}
# validation accuracies choose round 2 everywhere; the test oracle is elsewhere
VALIDATION = [10, 90, 50]


def metrics(dark: float, bright: float) -> dict:
    both = [dark, bright]
    return Metrics(
        avg=statistics.fmean(both),
        std=statistics.stdev(both),
        all=(3 * dark + bright) / 4,
        worst=min(both),
        loss=1.0,
        domains={"bright": bright, "dark": dark},
        clients={},
    ).to_json()


def made_run(method="fedavg", seed=0, test=None, *, label=None, shares=None, **changes):
    config, _ = configure(
        method, tiny_scenario(**{"protocols": ("personal",), **changes}), seed=seed
    )
    config = config.model_copy(update={"method": label or method})
    history = [
        {"round": i, "scores": {"personal": {"val": metrics(v, v), "test": metrics(*pair)}}}
        for i, (v, pair) in enumerate(zip(VALIDATION, test or MADE[method][seed], strict=True), 1)
    ]
    traffic = {"train": {"up": 6000, "down": 3_000_000}, "total": {"up": 9000, "down": 4_000_000}}
    facts = {"clients": 4, "parameters": 10, "shares": shares or {}, "bytes": traffic, "seconds": 1}
    return RunResult(config, history, summarise(config, history, **facts), None)


def made(**changes):
    return Comparison([made_run(m, s, **changes) for m in MADE for s in (0, 1)])


def scored(round_: int, value: float) -> dict:
    """A line of the metrics, scored under personal."""
    rows = made_run().history
    scores = json.loads(json.dumps(rows[0]["scores"]))
    scores["personal"]["test"]["avg"] = value
    return {"round": round_, "losses": {"task": 1.5}, "seconds": 2.0, "scores": scores}


def write_run(path, rows, name="fedavg"):
    """A run directory as far as a view reads it."""
    path.mkdir(parents=True, exist_ok=True)
    config = made_run(label=name).config.model_dump(mode="json")
    (path / "config.json").write_text(json.dumps({"run": config}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
