"""The answer of a comparison in one sentence: who won, by how much, and whether that is sure.

Pages and Markdown begin with it. The winner's lead is that over the second best, taken seed by seed
(with one seed: test sample by test sample); it is beyond the error if its 95 % interval leaves out
zero, which is the same as a paired t-test at 5 %. Nothing is corrected for the number of methods:
the sentence says how many were compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtr

from fedshift.report.cells import Cell
from fedshift.report.results import Comparison
from fedshift.report.tables import Summary, TableRow, signed

Verdict = Literal["ahead", "level", "unknown", "alone"]


@dataclass(frozen=True)
class Answer:
    """Who leads under one protocol; ``lead`` is the paired difference to the second."""

    protocol: str
    verdict: Verdict
    best: str
    score: Cell
    second: str = ""
    lead: Cell = Cell(math.nan, math.nan, 0)  # noqa: RUF009  frozen, as Cell.of(()) makes it
    level: tuple[str, ...] = ()  # methods that the leader cannot be told from
    methods: int = 1
    oracle: bool = False

    @property
    def headline(self) -> str:
        """The first sentence."""
        if self.verdict == "alone":
            return f"{self.best}: {self.score.shown}"
        if self.verdict == "ahead":
            return f"{self.best} wins: {self.score.shown}"
        if self.verdict == "level":
            return f"No clear winner: {self.best} leads with {self.score.shown}"
        return f"{self.best} has the highest number: {self.score.shown}"

    @property
    def reason(self) -> str:
        """By how much, against whom, and whether that is beyond the error."""
        mark = "Rounds were chosen on test data (ORACLE): not a fair number. " * self.oracle
        if self.verdict == "alone":
            return f"{mark}No other method has a number to compare with."
        many = f"{self.methods} methods compared, without a correction for their number."
        gap = f"{signed(self.lead)} points over {self.second}"
        if self.verdict == "unknown":
            why = "how sure that is cannot be said: it takes two seeds in common, or predictions"
            return f"{mark}{gap}; {why} that were kept. {many}"
        if self.verdict == "ahead":
            return f"{mark}{gap}, beyond the error ({self.basis}). {many}"
        names = ", ".join(self.level[:8]) + (" and others" if len(self.level) > 8 else "")
        inside = f"{mark}{gap}, within the error ({self.basis})."
        return f"{inside} Not told from {self.best}: {names}. {many}"

    @property
    def basis(self) -> str:
        """What the interval of the lead comes from."""
        if self.lead.n > 1:
            p = paired_p(self.lead.values)
            chance = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
            return f"paired over {self.lead.n} seeds, 95 % interval, {chance}"
        return "one seed, 95 % interval over test samples"


def paired_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of a paired t-test; NaN for fewer than two differences.

    >>> round(paired_p([1.0, 2.0, 3.0]), 4)  # t = 2 / (1 / sqrt(3)) = 3.4641 with 2 degrees
    0.0742
    """
    known = [d for d in differences if not math.isnan(d)]
    cell = Cell.of(known)
    if cell.n < 2:
        return math.nan
    if cell.std == 0:
        return 0.0 if cell.mean else 1.0
    t = abs(cell.mean) * math.sqrt(cell.n) / cell.std
    return float(2 * stdtr(cell.n - 1, -t))


def beyond(lead: Cell) -> bool | None:
    """Whether a difference is beyond its interval; None if it has none."""
    return None if math.isnan(lead.interval) else abs(lead.mean) > lead.interval


def answers(comparison: Comparison, summary: Summary) -> list[Answer]:
    """One answer per protocol that at least one method has a number for."""
    found = [_answer(comparison, summary.scenario, p, rows) for p, rows in summary.columns.items()]
    return [answer for answer in found if answer is not None]


def _answer(
    comparison: Comparison, scenario: str, protocol: str, rows: Sequence[TableRow]
) -> Answer | None:
    """The best of the rows against all others; fair choices of a round come before an oracle's."""
    known = [row for row in rows if row.avg.n]
    fair = [row for row in known if not row.oracle] or known
    order = sorted(fair, key=lambda row: -row.avg.mean)
    if not order:
        return None
    first = order[0]
    oracle = first.oracle
    if len(order) == 1:
        return Answer(protocol, "alone", first.method, first.avg, oracle=oracle)

    def lead(other: TableRow) -> Cell:
        return comparison.difference(first.method, other.method, scenario, protocol)

    second = order[1]
    ahead = beyond(lead(second))
    verdict: Verdict = "unknown" if ahead is None else "ahead" if ahead else "level"
    level = tuple(row.method for row in order[1:] if not beyond(lead(row)))
    return Answer(
        protocol,
        verdict,
        first.method,
        first.avg,
        second.method,
        lead(second),
        level if verdict == "level" else (),
        len(order),
        oracle,
    )
