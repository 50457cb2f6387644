"""What runs and comparisons return: typed numbers, and how each was chosen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedshift.core.config import RunConfig
from fedshift.evaluate.metrics import Metrics, rounds_to
from fedshift.runs.record import Row

Choice = Literal["selected", "last", "oracle"]


@dataclass(frozen=True)
class Outcome:
    """One protocol's numbers at one round, and the rule that chose the round.

    ``rule`` is validation, last, or oracle; the last of these looked at test data.
    """

    rule: str
    round: int
    metrics: Metrics


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    config: RunConfig
    history: list[Row]
    summary: Row
    path: Path | None

    @property
    def label(self) -> str:
        """The method as tables print it."""
        return self.config.label

    def outcome(self, protocol: str, choice: Choice = "selected") -> Outcome | None:
        """Numbers of a protocol, None where the method has no such model."""
        found = self.summary["protocols"].get(protocol)
        if found is None:
            return None
        row = found[choice]
        return Outcome(row["rule"], row["round"], Metrics.from_json(row["metrics"]))

    def accuracy(self, protocol: str, choice: Choice = "selected") -> float:
        """AVG over domains in per cent, NaN where the method has no such model."""
        outcome = self.outcome(protocol, choice)
        return outcome.metrics.avg if outcome else math.nan

    def curve(
        self, protocol: str, key: str = "avg", split: str = "test"
    ) -> list[tuple[int, float]]:
        """(round, value) of every evaluation."""
        rows = [r for r in self.history if protocol in r.get("scores", {})]
        return [(r["round"], r["scores"][protocol][split][key]) for r in rows]

    def rounds_to(self, threshold: float, protocol: str) -> int | None:
        """First evaluated round whose AVG reaches ``threshold``."""
        return rounds_to(threshold, self.curve(protocol))


@dataclass(frozen=True)
class Cell:
    """Mean over seeds with the sample deviation (NaN for one seed)."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Cell:
        """Cell of the values that are numbers."""
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
    """A run that did not finish, and why."""

    config: RunConfig
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    results: list[RunResult]
    failures: list[Failure] = field(default_factory=list)
    path: Path | None = None

    @property
    def methods(self) -> list[str]:
        """Labels in the order they were asked for."""
        return list(dict.fromkeys(r.label for r in self.results))

    @property
    def scenarios(self) -> list[str]:
        """Scenarios in order, each with what was changed of the registered one."""
        return list(dict.fromkeys(r.config.place for r in self.results))

    def of(self, method: str, scenario: str) -> list[RunResult]:
        """Runs of one method in one scenario, by seed."""
        return [r for r in self.results if (r.label, r.config.place) == (method, scenario)]

    def protocols(self, scenario: str) -> list[str]:
        """Protocols of a scenario that at least one method has an answer to."""
        runs = [r for r in self.results if r.config.place == scenario]
        return list(dict.fromkeys(p for r in runs for p in r.summary["protocols"]))

    def cell(
        self,
        method: str,
        scenario: str,
        protocol: str,
        key: str = "avg",
        choice: Choice = "selected",
    ) -> Cell:
        """One number over seeds: avg, std, all, worst, or the name of a domain."""
        outcomes = [r.outcome(protocol, choice) for r in self.of(method, scenario)]
        values = [
            o.metrics.domains[key]
            if key in o.metrics.domains
            else getattr(o.metrics, key, math.nan)  # nobody of that domain answered
            for o in outcomes
            if o is not None
        ]
        return Cell.of(values)
