"""The results that ``run`` and ``compare`` return: numbers, and the rule that chose their round.

Users read them directly; tables, figures and pages are made from them. A number must never appear
without its selection rule: an oracle's choice, which looked at test data, is always marked.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.core.config import RunConfig
from fedshift.evaluate.metrics import Metrics, rounds_to
from fedshift.report import optional
from fedshift.runs.record import Row

Choice = Literal["selected", "last", "oracle"]


@dataclass(frozen=True)
class Outcome:
    """The numbers of one protocol at one round, and the rule that chose the round.

    ``rule`` is validation, last, or oracle; an oracle chooses the round on test data.
    """

    rule: str
    round: int
    metrics: Metrics


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run: its configuration, its history over rounds, its summary, and its directory.

    In a notebook it is displayed as a table; :meth:`plot` draws accuracy over rounds and
    :meth:`to_frame` gives the history to pandas.
    """

    config: RunConfig
    history: list[Row]
    summary: Row
    path: Path | None

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.config.label

    def outcome(self, protocol: str, choice: Choice = "selected") -> Outcome | None:
        """The numbers of a protocol; None if the method has no such model."""
        found = self.summary["protocols"].get(protocol)
        if found is None:
            return None
        row = found[choice]
        return Outcome(row["rule"], row["round"], Metrics.from_json(row["metrics"]))

    def accuracy(self, protocol: str, choice: Choice = "selected") -> float:
        """AVG over domains in per cent; NaN if the method has no such model."""
        outcome = self.outcome(protocol, choice)
        return outcome.metrics.avg if outcome else math.nan

    def curve(
        self, protocol: str, key: str = "avg", split: str = "test"
    ) -> list[tuple[int, float]]:
        """(round, value) of every scored round."""
        rows = [r for r in self.history if protocol in r.get("scores", {})]
        return [(r["round"], r["scores"][protocol][split][key]) for r in rows]

    def rounds_to(self, threshold: float, protocol: str) -> int | None:
        """First scored round whose AVG over domains reaches ``threshold``; None if none does."""
        return rounds_to(threshold, self.curve(protocol))

    def __repr__(self) -> str:
        found = [f"{name} {self.accuracy(name):.1f}" for name in self.summary["protocols"]]
        where = f"{self.config.scenario_label}, seed {self.config.seed}"
        return f"<{self.label} on {where}, {self.summary['rounds']} rounds: {', '.join(found)}>"

    def _repr_html_(self) -> str:
        """For notebooks: one line per protocol."""
        return _notebook().run_table(self)

    def to_frame(self) -> Any:
        """The history as a pandas data frame: one row per scored round, protocol and split."""
        return _notebook().history(self)

    def plot(self, protocol: str | None = None) -> Any:
        """Test accuracy over rounds as a matplotlib figure; by default of the first protocol."""
        return Comparison([self]).plot(protocol)


@dataclass(frozen=True)
class Cell:
    """Mean over seeds and sample standard deviation (NaN for a single seed)."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Cell:
        """Mean and deviation of ``values``; NaN values are left out."""
        known = [v for v in values if not math.isnan(v)]
        if not known:
            return cls(math.nan, math.nan, 0)
        return cls(
            statistics.fmean(known),
            statistics.stdev(known) if len(known) > 1 else math.nan,
            len(known),
        )

    def __str__(self) -> str:
        if self.n == 0:
            return "–"  # noqa: RUF001  the sign for no value
        return f"{self.mean:.1f}" if math.isnan(self.std) else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and the reason."""

    config: RunConfig
    reason: str


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several runs side by side.

    In a notebook it is displayed as one table per scenario; :meth:`plot` draws the methods over
    rounds and :meth:`to_frame` gives one row per run and protocol to pandas.
    """

    results: list[RunResult]
    failures: list[Failure] = field(default_factory=list)
    path: Path | None = None

    @property
    def methods(self) -> list[str]:
        """Labels of the methods, in the order in which they were requested."""
        return list(dict.fromkeys(r.label for r in self.results))

    @property
    def scenarios(self) -> list[str]:
        """Labels of the scenarios in order, each with its changes to the registered one."""
        return list(dict.fromkeys(r.config.scenario_label for r in self.results))

    def of(self, method: str, scenario: str) -> list[RunResult]:
        """The runs of one method in one scenario, one per seed."""
        return [r for r in self.results if (r.label, r.config.scenario_label) == (method, scenario)]

    def protocols(self, scenario: str) -> list[str]:
        """The protocols of a scenario for which at least one method has a model."""
        runs = [r for r in self.results if r.config.scenario_label == scenario]
        return list(dict.fromkeys(p for r in runs for p in r.summary["protocols"]))

    def cell(
        self,
        method: str,
        scenario: str,
        protocol: str,
        key: str = "avg",
        choice: Choice = "selected",
    ) -> Cell:
        """One number over seeds: ``key`` is avg, std, all, worst, a domain or a measure."""
        outcomes = [r.outcome(protocol, choice) for r in self.of(method, scenario)]
        return Cell.of(o.metrics.value(key) for o in outcomes if o is not None)

    def __repr__(self) -> str:
        seeds = len({r.config.seed for r in self.results})
        counts = f"{len(self.methods)} methods, {len(self.scenarios)} scenarios, {seeds} seeds"
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<{len(self.results)} runs: {counts}{failed}>"

    def _repr_html_(self) -> str:
        """For notebooks: one table per scenario, means over seeds."""
        return _notebook().comparison_tables(self)

    def to_frame(self) -> Any:
        """The selected rounds as a pandas data frame: one row per run and protocol."""
        return _notebook().selected(self)

    def plot(self, protocol: str | None = None, scenario: str | None = None) -> Any:
        """Accuracy over rounds of every method, as a matplotlib figure.

        By default for the first scenario, and the first protocol for which some method has a model.
        """
        if not self.results:
            raise ConfigError("there is no finished run to draw; finish one first")
        scenario = _one_of("scenario", scenario, self.scenarios)
        protocol = _one_of("protocol", protocol, self.protocols(scenario))
        return optional.figures().curves(self, scenario, protocol)


def _one_of(kind: str, wanted: str | None, known: Sequence[str]) -> str:
    """``wanted`` if it is known, or the first known one if it is None."""
    if wanted is not None and wanted not in known:
        raise UnknownNameError.of(f"{kind} of these runs", wanted, known)
    return known[0] if wanted is None else wanted


def _notebook() -> Any:
    """``report.notebook``, which imports this module and so can only be imported when needed."""
    return import_module("fedshift.report.notebook")
