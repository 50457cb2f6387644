"""Finished runs with made numbers, for tests that know the answer; nothing is trained."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from fedshift.core.config import configure
from fedshift.evaluate.metrics import Metrics
from fedshift.report.results import RunResult
from fedshift.runs.summary import summarise
from fedshift.testing import tiny_scenario


def scores(domains: dict[str, float]) -> dict:
    values = list(domains.values())
    return Metrics(
        avg=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else 0.0,
        all=statistics.fmean(values),
        worst=min(values),
        loss=1.0,
        domains=domains,
        clients={},
    ).to_json()


def made_run(
    rounds: list[dict[str, float]],
    *,
    method: str = "fedavg",
    seed: int = 0,
    path: Path | None = None,
    protocol: str = "personal",
    more: list[dict] | None = None,
    **changes,
) -> RunResult:
    """A run whose domains have these accuracies; ``more`` is added to the rows of the rounds."""
    options = {"protocols": (protocol,), "selection": "last", "rounds": len(rounds), **changes}
    config, _ = configure(method, tiny_scenario(**options), seed=seed)
    history = [
        {
            "round": i,
            "scores": {protocol: {"val": scores(domains), "test": scores(domains)}},
            **(more[i - 1] if more else {}),
        }
        for i, domains in enumerate(rounds, 1)
    ]
    traffic = {"train": {"up": 0, "down": 0}, "total": {"up": 0, "down": 0}}
    facts = {"clients": 4, "parameters": 10, "shares": {}, "bytes": traffic, "seconds": 1.0}
    return RunResult(config, history, summarise(config, history, **facts), path)


def write_ledger(path: Path, sizes: dict[int, list[tuple[str, str, int]]]) -> None:
    """Lines of messages by round: task, direction and bytes."""
    rows = [
        {"round": r, "task": t, "client": "a", "direction": d, "bytes": n, "kinds": {}}
        for r, messages in sizes.items()
        for t, d, n in messages
    ]
    path.mkdir(parents=True, exist_ok=True)
    (path / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
