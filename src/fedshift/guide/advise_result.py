"""What ``advise`` found: which method to take, why, how sure that is, and what it costs.

``guide.advise`` makes an :class:`Advice`; people read its sentences, its table and its files. The
rule is here and nowhere else: a method is taken if it is ahead of FedAvg beyond the error, and of
local training too if that is itself ahead of FedAvg. Else FedAvg is taken, and said to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.base.files import write_bytes, write_json
from fedshift.base.times import duration
from fedshift.core.config import configure
from fedshift.core.scenario import Scenario
from fedshift.engine.compute import Compute
from fedshift.guide.advise_contest import (
    Contest,
    Tried,
    leaves,
    seconds_taken,
)
from fedshift.guide.advise_lines import (
    AHEAD,
    BEHIND,
    HEADS,
    LEVEL,
    AdviceLine,
    lines_of,
    standing,
    told,
    worth,
)
from fedshift.guide.halving import Schedule
from fedshift.guide.shortlist import FEDAVG, LOCAL
from fedshift.report.answers import paired_p
from fedshift.report.cells import Cell
from fedshift.report.formats import markdown_table, markdown_text
from fedshift.report.results import RunResult
from fedshift.report.tables import measure_note, signed, size
from fedshift.runs.run_file import run_file_text

Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Advice:
    """The method to take. ``sentences`` say it in words, ``lines`` are the table behind it."""

    question: str
    scenario: str
    method: str  # as it is typed
    verdict: str  # ahead, or level: nothing measured better than FedAvg
    sentences: tuple[str, ...]
    lines: tuple[AdviceLine, ...]
    left_out: tuple[tuple[str, str], ...]  # methods and reasons
    leaves: tuple[str, ...]  # a site
    schedule: Schedule
    given: Scenario
    note: str
    notes: tuple[str, ...] = ()
    limits: Row = field(default_factory=dict)
    test: Cell = Cell(math.nan, math.nan, 0)  # noqa: RUF009  frozen
    seconds: float = 0.0  # that all runs of the advice took
    rounds: int = 0  # that were played for it

    def __repr__(self) -> str:
        return f"<advice for {self.question} in {self.scenario}: take {self.method}>"

    def tested(self, found: tuple[Cell, Sequence[RunResult]]) -> Advice:
        """The same with the test number of the method that is taken."""
        cell, runs = found
        told_ = f"On test data, looked at for it alone, it reaches {cell.shown}."
        spent = sum(map(seconds_taken, runs)) if self.question in LEFT_OUT else 0.0
        more = sum(run.history[-1]["round"] for run in runs) if self.question in LEFT_OUT else 0
        head, *rest = self.sentences
        return replace(
            self,
            test=cell,
            sentences=(head, told_, *rest) if cell.n else self.sentences,
            seconds=self.seconds + spent,
            rounds=self.rounds + more,
        )

    @property
    def text(self) -> str:
        """All sentences."""
        took = f"The advice itself took {self.rounds} rounds and {duration(self.seconds)} of runs."
        return "\n".join([*self.sentences, *self.notes, took])

    def to_json(self) -> Row:
        """All of it as JSON values."""
        return {
            "question": self.question,
            "scenario": self.scenario,
            "method": self.method,
            "verdict": self.verdict,
            "sentences": list(self.sentences),
            "test": told(self.test),
            "leaves": list(self.leaves),
            "limits": self.limits,
            "notes": list(self.notes),
            "note": self.note,
            "schedule": self.schedule.to_json(),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "lines": [line.to_json() for line in self.lines],
            "left_out": [{"method": m, "reason": why} for m, why in self.left_out],
        }

    def markdown(self) -> str:
        """The advice as a page."""
        table = markdown_table(HEADS, [list(map(markdown_text, x.texts)) for x in self.lines])
        reasons = {line.name: line.reason for line in self.lines}
        out = [
            f"# {markdown_text(self.question)}: {markdown_text(self.scenario)}\n",
            "\n".join(f"- {markdown_text(s)}" for s in self.text.splitlines()),
            f"\n{table}\n{markdown_text(self.note)}\n",
            "## Why these methods\n",
            *(f"- `{name}`: {markdown_text(why)}." for name, why in reasons.items()),
        ]
        if self.left_out:
            out += ["\n## Left out\n", *(f"- `{m}`: {markdown_text(w)}." for m, w in self.left_out)]
        return "\n".join(out) + "\n"

    def run_file(self) -> str:
        """A run file with the method that is taken, in the scenario as it was given."""
        config, _ = configure(self.method, self.given)
        body = run_file_text(config, Compute(), "advice.toml").partition("\n\n")[2]
        head = "".join(f"# {line}\n" for line in self.sentences)
        return f"{head}# `fedshift run advice.toml` trains it.\n\n{body}"

    def write(self, folder: Path) -> None:
        """Write ``advice.md``, ``advice.json`` and the run file ``advice.toml``."""
        write_json(folder / "advice.json", self.to_json())
        write_bytes(folder / "advice.md", self.markdown().encode())
        write_bytes(folder / "advice.toml", self.run_file().encode())


LEFT_OUT = ("unseen", "unlabelled")


def advice_of(  # noqa: PLR0913  what a contest leaves, by name
    contest: Contest,
    schedule: Schedule,
    every: Sequence[Tried],
    finals: Sequence[Tried],
    left_out: Sequence[tuple[str, str]],
    *,
    given: Scenario,
    limits: Row,
    notes: Sequence[str],
) -> Advice:
    """The advice that follows from what was played."""
    scores = {t.candidate.method: contest.cell(t) for t in finals}
    fedavg = finals[0].candidate.method
    leads = {m: cell.minus(scores[fedavg]) for m, cell in scores.items() if m != fedavg}
    local = next((t.candidate.method for t in finals if t.candidate.entry.method == LOCAL), "")
    dropped = {method for method, _ in left_out}
    taken, verdict = chosen(leads, fedavg, local, scores, barred=fedavg in dropped)
    lines = lines_of(contest, schedule, every, finals, taken, verdict)
    runs = [run for t in (*every, *finals) for run in t.results]
    said = sentences_of(contest, lines, taken, verdict, barred=fedavg in dropped)
    return Advice(
        contest.question.name,
        given.name,
        taken,
        verdict,
        tuple(said),
        tuple(lines),
        tuple(pair for pair in left_out),
        tuple(leaves(taken)),
        schedule,
        given,
        note_of(contest, finals),
        tuple(notes),
        limits,
        seconds=sum(map(seconds_taken, runs)),
        rounds=sum(run.history[-1]["round"] for run in runs),
    )


def chosen(
    leads: dict[str, Cell], fedavg: str, local: str, scores: dict[str, Cell], *, barred: bool
) -> tuple[str, str]:
    """Which method is taken, and whether it is ahead of FedAvg beyond the error.

    ``barred`` says that FedAvg itself does not keep to the limits: then the best that does is taken
    all the same.
    """
    challenger = next((m for m in leads if m != local), "")
    ahead = {m for m, lead in leads.items() if standing(lead) == AHEAD}
    over_local = bool(challenger) and (
        local not in ahead or standing(scores[challenger].minus(scores[local])) == AHEAD
    )
    if challenger in ahead and over_local:
        return challenger, AHEAD
    if local in ahead:
        return local, AHEAD
    if not barred:
        return fedavg, LEVEL
    if not challenger:
        raise ConfigError("no method of the shortlist sends as little; allow more", "max_bytes=N")
    return challenger, standing(leads[challenger])


def basis(contest: Contest, lead: Cell) -> str:
    """What a difference's interval comes from."""
    if lead.n < 2:
        return "one seed, 95 % interval over samples"
    p = paired_p(lead.values)
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    over = "domains left out in turn" if contest.question.left_out else "seeds"
    return f"paired over {lead.n} {over}, 95 % interval, {chance}"


def sentences_of(
    contest: Contest, lines: Sequence[AdviceLine], taken: str, verdict: str, *, barred: bool
) -> list[str]:
    """What to take, by how much and how sure, at what cost, and what leaves a site."""
    ended = [line for line in lines if line.final]
    own = next(line for line in ended if line.method == taken)
    fedavg = next(line for line in ended if line.name == FEDAVG)
    rivals = [line for line in ended if line not in (own, fedavg)]
    head = headline(contest, own, fedavg, rivals, verdict, barred=barred)
    cost = f"To train it takes {duration(own.seconds)} here; a site sends {size(own.sent)} in all"
    if own is not fedavg and fedavg.sent and fedavg.seconds:
        bytes_, time_ = own.sent / fedavg.sent, own.seconds / fedavg.seconds
        cost += f": {time_:.2g} times FedAvg's time, {bytes_:.2g} times its bytes"
    left = f"What leaves each site: {'; '.join(leaves(taken))}."
    return [head, *beside(contest, own, rivals), f"{cost}.", left]


def headline(
    contest: Contest,
    own: AdviceLine,
    fedavg: AdviceLine,
    rivals: Sequence[AdviceLine],
    verdict: str,
    *,
    barred: bool,
) -> str:
    """The first sentence."""
    against = f"{own.score.mean:.1f} against FedAvg's {fedavg.score.mean:.1f}"
    lead = f"{signed(own.lead)} points ({basis(contest, own.lead)})"
    name = own.method
    if barred:
        return f"Take {name}: FedAvg itself sends too much. It has {against}, {lead}."
    if own is fedavg:
        told_ = "Take FedAvg: nothing measured better."
        if not rivals:
            return f"{told_} No other method of the shortlist could be compared."
        best = max(rivals, key=lambda line: worth(line.score))
        where = {AHEAD: "ahead", BEHIND: "behind"}.get(standing(best.lead), "within the error")
        return (
            f"{told_} The best of the others, {best.method}, has {signed(best.lead)} points to it, "
            f"{where} ({basis(contest, best.lead)})."
        )
    if own.name == LOCAL:
        return (
            f"Take local: no federation measured better than training alone. It has {against}, "
            f"{lead}."
        )
    assert verdict == AHEAD
    return f"Take {name}: {against}, {lead}."


def beside(contest: Contest, own: AdviceLine, rivals: Sequence[AdviceLine]) -> list[str]:
    """How the method that is taken stands to local training, if that went to the end too."""
    alone = next((line for line in rivals if line.name == LOCAL), None)
    if alone is None or own.name == FEDAVG:
        return []
    lead = own.score.minus(alone.score)
    sure = "" if standing(lead) == AHEAD else ", which is within the error"
    return [f"To local training it has {signed(lead)} points{sure} ({basis(contest, lead)})."]


def note_of(contest: Contest, finals: Sequence[Tried]) -> str:
    """What the numbers of the table are."""
    run = finals[0].results[0]
    what = "validation data"
    if contest.question.left_out:
        what = "a training domain that was left out of the run, another one in each"
    seeds = len(finals[0].results)
    return (
        f"{measure_note(run)}, AVG over domains, on {what}; same rounds for all. The first lines: "
        f"whole runs on {seeds} seeds that chose nothing, ± 95 % interval. The others were given "
        "up after the round in the last column, on seed 0. sent: by one site in a whole run; min: "
        "of its training in one process."
    )
