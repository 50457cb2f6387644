"""Runs of one scenario that differ in its settings, in one table because somebody asked for it.

By default such runs are other scenarios and have tables of their own (``Comparison.scenario_of``):
numbers at another scale, under another protocol or of another moment of scoring do not compare.
Here they share a table, and every row says in what it differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedshift.core.config import compared, flat
from fedshift.report.results import Comparison, RunResult

NOTE = "MIXED: rows of one table differ in {keys}; what they have is beside each method's name."


@dataclass(frozen=True, repr=False)
class LabelledRun(RunResult):
    """A run whose label says in what its scenario differs from those of the others."""

    told: str = ""

    @property
    def label(self) -> str:
        """The method's name, and what differs."""
        return f"{self.config.label} ({self.told})" if self.told else self.config.label


@dataclass(frozen=True, repr=False)
class MixedComparison(Comparison):
    """Runs side by side of which those of one scenario's name share a table."""

    keys: tuple[str, ...] = field(default=())

    def scenario_of(self, result: RunResult) -> str:
        """The scenario's name alone."""
        return result.config.scenario.name


def mixed(comparison: Comparison) -> Comparison:
    """The same runs, one table per name of a scenario, rows labelled by what differs."""
    tables = {id(r): _options(r) for r in comparison.results}
    varied: dict[str, list[str]] = {}
    for name in dict.fromkeys(r.config.scenario.name for r in comparison.results):
        own = [tables[id(r)] for r in comparison.results if r.config.scenario.name == name]
        keys = dict.fromkeys(key for table in own for key in table)
        varied[name] = [k for k in keys if any(t.get(k) != own[0].get(k) for t in own)]
    found: list[RunResult] = [
        LabelledRun(
            r.config,
            r.history,
            r.summary,
            r.path,
            ", ".join(f"{k}={tables[id(r)].get(k)}" for k in varied[r.config.scenario.name]),
        )
        for r in comparison.results
    ]
    told = tuple(dict.fromkeys(k for own in varied.values() for k in own))
    notes = [*comparison.notes, *([NOTE.format(keys=", ".join(told))] if told else [])]
    return MixedComparison(found, comparison.failures, comparison.path, notes, keys=told)


def _options(result: RunResult) -> dict[str, object]:
    """Everything of a scenario that makes numbers differ, data included."""
    scenario = result.config.scenario
    return {
        "scale": scenario.scale,
        **compared(scenario, flat(scenario)),
        "data version": result.config.data,
    }
