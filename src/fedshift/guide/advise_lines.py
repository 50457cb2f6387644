"""The table behind an advice: one line per setting that was played, and how it stands to FedAvg.

``guide.advise_result`` makes its decision of these lines and prints them. FedAvg is always taken on
the same data and after as many rounds. Nothing here may decide what is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.experiment.pausing import so_far
from fedshift.guide.advise_contest import Contest, Tried, bytes_sent, seconds_to_train
from fedshift.guide.halving import Schedule
from fedshift.guide.shortlist import FEDAVG
from fedshift.report.answers import beyond
from fedshift.report.cells import Cell
from fedshift.report.tables import NONE, signed, size

Row = dict[str, Any]
HEADS = ("method", "setting", "score", "to FedAvg", "sent", "min", "")
AHEAD, LEVEL, BEHIND = "ahead", "level", "behind"


@dataclass(frozen=True)
class AdviceLine:
    """One setting of one method: its score, its lead over FedAvg, and what a whole run takes."""

    name: str
    method: str  # as it is typed
    setting: str
    reason: str  # why it is on the shortlist
    rounds: int
    final: bool
    score: Cell
    lead: Cell
    sent: float  # bytes of one site in a whole run
    seconds: float  # of training in a whole run, in one process
    remark: str

    @property
    def texts(self) -> list[str]:
        """The cells of the table."""
        sent = NONE if math.isnan(self.sent) else size(self.sent)
        minutes = NONE if math.isnan(self.seconds) else f"{self.seconds / 60:.1f}"
        lead = "" if self.name == FEDAVG else signed(self.lead)
        setting = self.setting.replace("=", " ")
        return [self.name, setting, self.score.shown, lead, sent, minutes, self.remark]

    def to_json(self) -> Row:
        """The fields as plain JSON values; what is not known is null."""
        return {
            "method": self.method,
            "setting": self.setting,
            "reason": self.reason,
            "rounds": self.rounds,
            "final": self.final,
            "score": told(self.score),
            "difference": told(self.lead),
            "bytes": number(self.sent),
            "seconds": number(self.seconds),
            "remark": self.remark,
        }


def told(cell: Cell) -> Row:
    """A number with its interval as JSON values."""
    return {
        "mean": number(cell.mean),
        "interval": number(cell.interval),
        "n": cell.n,
        "values": list(cell.values),
    }


def number(value: float) -> float | None:
    """A number, or None for one that is not known."""
    return None if math.isnan(value) else value


def standing(lead: Cell) -> str:
    """Where a difference stands: beyond its interval above or below zero, or within it."""
    if lead.n == 0 or not beyond(lead):
        return LEVEL
    return AHEAD if lead.mean > 0 else BEHIND


def lines_of(
    contest: Contest,
    schedule: Schedule,
    every: Sequence[Tried],
    finals: Sequence[Tried],
    taken: str,
    verdict: str,
) -> list[AdviceLine]:
    """The table: those of the end first, then the others by how far they came."""
    ended = {t.candidate for t in finals}
    rest = [t for t in every if t.candidate not in ended]
    rest.sort(key=lambda t: (-t.rounds, -worth(contest.cell(t))))
    order = sorted(finals, key=lambda t: t.candidate.method != taken)
    lines = []
    for one in (*order, *rest):
        same = finals if one.final else every
        base = next(t for t in same if t.candidate == finals[0].candidate)
        if not one.final:
            base = at_round(base, one.rounds)
        lines.append(line_of(contest, schedule, one, base, taken, verdict))
    return lines


def worth(cell: Cell) -> float:
    """For sorting: a score, and the lowest for none."""
    return cell.mean if cell.n else -math.inf


def at_round(tried: Tried, until: int) -> Tried:
    """A candidate as it stood after a round that it has passed."""
    runs = [so_far(run.config, run.path, until) for run in tried.results]
    return Tried(tried.candidate, [run for run in runs if run is not None], until)


def line_of(
    contest: Contest, schedule: Schedule, one: Tried, base: Tried, taken: str, verdict: str
) -> AdviceLine:
    """One line of the table; ``base`` is FedAvg on the same data after as many rounds."""
    score, entry = contest.cell(one), one.candidate.entry
    runs, count = one.results, max(1, len(one.results))
    lead = score.minus(contest.cell(base)) if score.n and not one.diverged else Cell.of(())
    if one.diverged:
        remark = "diverged"
    elif not score.n:
        remark = "no model"
    elif not one.final:
        remark = f"round {one.rounds}"
    else:
        remark = "take it" if one.candidate.method == taken else standing(lead)
    if one.final and entry.method == FEDAVG and one.candidate.method != taken:
        remark = BEHIND if verdict == AHEAD else ""
    return AdviceLine(
        entry.method,
        one.candidate.method,
        one.candidate.setting,
        entry.reason,
        one.rounds,
        one.final,
        score,
        lead,
        sum(bytes_sent(r, schedule.rounds) for r in runs) / count if runs else math.nan,
        sum(seconds_to_train(r, schedule.rounds) for r in runs) / count if runs else math.nan,
        remark,
    )
