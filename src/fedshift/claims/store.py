"""Finished runs of claims and recipes in one file, to go on from elsewhere and later.

A line of JSON per run: what it was (its name contains a hash of method, scenario, seed and data),
its numbers under every rule, and its curve; and a line per claim or recipe that names its runs.
``claims.run`` appends to it and skips what is there; ``claims.table`` reads it. Lines are only ever
added, later ones of a claim count; a line that was cut short is ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from fedshift.base.errors import RunError
from fedshift.claims.claim import Claim
from fedshift.core.scenario import Scenario
from fedshift.evaluate.metrics import Metrics
from fedshift.report.results import RunResult
from fedshift.runs.summary import LAST, choose

Row = dict[str, Any]
RULES: tuple[str, ...] = get_args(Scenario.model_fields["selection"].annotation)
KEPT = ("avg", "std", "all", "worst", "domains")  # of the metrics; a few kB for a run


def row_of(result: RunResult) -> Row:
    """What is kept of a finished run."""
    scored = [row for row in result.history if row.get("scores")]
    scores = {}
    for protocol in result.summary["protocols"]:
        rules = {rule: choose(protocol, scored, rule)["selected"]["metrics"] for rule in RULES}
        scores[protocol] = {rule: short(found) for rule, found in rules.items()}
    return {
        "run": result.config.name,
        "method": result.label,
        "scenario": result.config.scenario_label,
        "scale": result.config.scenario.scale,
        "seed": result.config.seed,
        "rounds": result.summary["rounds"],
        "scores": scores,
        "curves": {p: result.curve(p) for p in result.summary["protocols"]},
        "analyses": analysed(result),
        "parameters": result.summary["parameters"],
        "bytes": result.summary["bytes"]["train"]["up"],
        "seconds": round(result.summary["seconds"], 1),
    }


def analysed(result: RunResult) -> dict[str, float]:
    """Every number that an analysis measured: the mean of its last five rounds."""
    names = result.config.scenario.analyses
    found = [[row[name] for row in result.history if name in row][-LAST:] for name in names]
    return {key: fmean(row[key] for row in rows) for rows in found if rows for key in rows[0]}


def short(metrics: Row) -> Row:
    """The numbers that claims speak of, and every further measure."""
    found = Metrics.from_json(metrics)
    return {key: getattr(found, key) for key in KEPT} | found.measures


@dataclass
class Results:
    """The runs in a file, by name, and by claim which runs are its method's and its control's."""

    path: Path
    rows: dict[str, Row] = field(default_factory=dict)
    plans: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Results:
        """The file's content; nothing if there is no such file yet."""
        rows: dict[str, Row] = {}
        plans: dict[str, Row] = {}
        try:
            lines = path.read_text().splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path} cannot be read ({error}); name another file") from None
        for line in lines:
            try:
                row = json.loads(line)
                if "claim" in row:
                    plans[row["claim"]] = row
                else:
                    rows[row["run"]] = row
            except (ValueError, KeyError, TypeError, RecursionError):  # cut short by a crash
                continue
        return cls(path, rows, plans)

    def add(self, row: Row) -> None:
        """Append a finished run."""
        self._append(row)
        self.rows[row["run"]] = row

    def keep_plan(self, claim: str, digest: str, sides: dict[str, dict[int, str]]) -> None:
        """Append which runs belong to a claim or recipe, unless the file says so already."""
        named = {
            side: {str(seed): run for seed, run in runs.items()} for side, runs in sides.items()
        }
        plan = {"claim": claim, "digest": digest, **named}
        if self.plans.get(claim) != plan:
            self._append(plan)
            self.plans[claim] = plan

    def _append(self, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def value(row: Row, claim: Claim, protocol: str) -> float:
    """The number that a claim speaks of, under a protocol; an error if the run has none."""
    if claim.exact:
        return float(row[claim.metric])
    number = score_of(row, claim.metric, claim.rule, protocol)
    if number is None:
        found = row["scores"].get(protocol, {}).get(claim.rule, {})
        raise RunError(
            f"claim {claim.name!r} speaks of {claim.metric!r} under {protocol}, which "
            f"{row['method']} has not; it has {', '.join(found) or 'no model for it'}"
        )
    return number


def score_of(row: Row, metric: str, rule: str, protocol: str) -> float | None:
    """A kept number of a run: of its scores, a domain's, or an analysis's; None if it has none."""
    found = row["scores"].get(protocol, {}).get(rule, {})
    further = found.get("domains", {}) | row.get("analyses", {})
    number = found.get(metric, further.get(metric))
    return None if number is None else float(number)
