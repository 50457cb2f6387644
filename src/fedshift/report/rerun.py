"""How to make the runs of a page again: complete run files, and the seeds to play them with.

``report.html`` prints them, so that whoever is sent a page can repeat it without the run
directories. A run file is complete: every setting is in it, defaults of today included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedshift.core.config import RunConfig
from fedshift.engine.compute import Compute
from fedshift.report.results import Comparison, RunResult
from fedshift.runs.begun import read_compute
from fedshift.runs.run_file import run_file_text


@dataclass(frozen=True)
class Rerun:
    """The run file of one method in one scenario, and its seeds; the page has the commands."""

    method: str
    name: str  # of the file, and of new run directories
    text: str
    seeds: tuple[int, ...]
    note: str = ""


def reruns(comparison: Comparison, scenario: str) -> list[Rerun]:
    """One per method, in the order of the tables."""
    number = comparison.scenarios.index(scenario) + 1
    found = [(m, comparison.of(m, scenario)) for m in comparison.methods]
    return [
        _rerun(runs, f"{number}-{i:02d}-{plain(method)}")
        for i, (method, runs) in enumerate(found, 1)
        if runs
    ]


def _rerun(runs: Sequence[RunResult], name: str) -> Rerun:
    first = runs[0]
    text = run_file_text(first.config, _compute(first), f"{name}.toml")
    seeds = [r.config.seed for r in runs]
    note = "" if first.config.replayable else "Its method was a Python object: pass it from Python."
    if reason := _others(first.config, runs):
        note = (
            f"{note} Runs of other seeds differ in {reason}; the file is that of seed {seeds[0]}."
        )
    return Rerun(first.label, name, text, tuple(seeds), note.strip())


def _compute(result: RunResult) -> Compute:
    return read_compute(result.path) or Compute()


def _others(first: RunConfig, runs: Sequence[RunResult]) -> str:
    """In what other than the seed the runs of a method differ, as text; usually nothing."""
    own = first.scenario.model_dump()
    dumps = [r.config.scenario.model_dump() for r in runs]
    return ", ".join(k for k in own if any(d[k] != own[k] for d in dumps) and k != "summary")


def plain(text: str) -> str:
    """A name that is safe as that of a file and in a shell.

    >>> plain("fedprox[mu=0.1] + mixup")
    'fedprox-mu-0.1-mixup'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "run"
