"""Measures beside the main one, and confusion matrices, as rows for screens and pages.

``report.screen`` and ``report.html`` show them where they show accuracies. All numbers come from
the runs' metrics; a measure that is not defined for a run is left blank, never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isnan, nan

from fedshift.core.objective import Objective
from fedshift.report.results import RunResult

TITLES = {
    "accuracy": "accuracy (%)",
    "balanced_accuracy": "balanced accuracy (%)",
    "macro_f1": "macro F1 (%)",
    "auroc": "AUROC (%)",
    "nll": "negative log-likelihood",
    "ece": "calibration error (%)",
    "r2": "R2 (%)",
    "mae": "mean absolute error",
    "rmse": "root mean square error",
}
PLAIN = ("nll", "mae", "rmse")  # in their own units, the others in per cent


def title(measure: str) -> str:
    """A measure as people read it, with its unit."""
    return TITLES.get(measure, measure.replace("_", " "))


def measures_beside(task: Objective) -> list[str]:
    """The measures of an objective besides its main one, which has tables of its own."""
    return [name for name in (*task.shares, *task.numbers) if name != task.main]


def by_domain(result: RunResult, protocol: str, names: Sequence[str]) -> list[list[str]]:
    """One line per measure of a run's selected round: each domain's value, then the mean."""
    outcome = result.outcome(protocol)
    if outcome is None or not outcome.metrics.by_domain:
        return []
    found = outcome.metrics
    lines = []
    for measure in measures_beside(result.config.scenario.task):
        values = [found.by_domain.get(d, {}).get(measure, nan) for d in names]
        values += [found.measures.get(measure, nan)] if len(names) > 1 else []
        lines.append([title(measure), *(number(measure, v) for v in values)])
    return lines


def number(measure: str, value: float) -> str:
    """A value of a measure: shares with one decimal, plain numbers with three digits.

    >>> number("auroc", 87.25), number("nll", 0.1234), number("mae", float("nan"))
    ('87.2', '0.123', '\N{EN DASH}')
    """
    if isnan(value):
        return "\N{EN DASH}"
    return f"{value:.3g}" if measure in PLAIN else f"{value:.1f}"


def confusion(runs: Sequence[RunResult], protocol: str, domain: str) -> Counter[tuple[int, int]]:
    """Counts by (true class, predicted class) of the selected rounds, added up over seeds."""
    total: Counter[tuple[int, int]] = Counter()
    for outcome in (o for r in runs if (o := r.outcome(protocol))):
        rows = outcome.metrics.confusion.get(domain, [])
        total.update({(true, predicted): count for true, predicted, count in rows})
    return total
