"""The numbers of a comparison as rows and columns, for screens, files and pages.

Every format reads its numbers here, so that all of them print the same. No table may present a
round that was chosen on test data as if it were chosen fairly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from statistics import fmean
from typing import TypeVar

from fedshift.base.errors import UnknownNameError
from fedshift.report.cells import Cell
from fedshift.report.results import Choice, Comparison, RunResult, cell_of

T = TypeVar("T")
NONE = "\N{EN DASH}"
CHOICES: tuple[Choice, ...] = ("selected", "last", "oracle")
MEASURES = ("avg", "std", "all", "worst")
FURTHER = {  # columns beside AVG where classes are uneven
    "auroc": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
}
UNEVEN = 1.5  # classes are uneven if the largest has more than so many times the smallest
RULES = {
    "validation": "round chosen on validation data",
    "last": "last round, nothing chosen",
    "last5": "mean of the last five scored rounds, nothing chosen",
    "oracle": "ORACLE: round chosen on test data",
}


@dataclass(frozen=True)
class TableRow:
    """One method under one protocol; cells are over seeds, and empty if it has no such model."""

    method: str
    domains: dict[str, Cell]
    avg: Cell
    std: Cell  # over domains
    all: Cell
    worst: Cell
    rounds_to: Cell | None  # over the seeds that reached the threshold; None without a threshold
    up: float  # bytes per round, all clients together, mean over seeds
    down: float
    seeds: int
    rules: tuple[str, ...]  # how rounds were chosen
    further: dict[str, Cell] = field(default_factory=dict)  # by measure, the mean over domains

    def cell(self, key: str) -> Cell:
        """AVG, or one of the further measures."""
        return self.avg if key == "avg" else self.further[key]

    @property
    def oracle(self) -> bool:
        """Whether the round was chosen on test data."""
        return "oracle" in self.rules

    @property
    def mark(self) -> str:
        """The warning printed next to each number of this row; empty for a fair choice."""
        return " ORACLE" if self.oracle else ""


def rows(
    comparison: Comparison,
    scenario: str,
    protocol: str,
    choice: Choice = "selected",
    *,
    threshold: float | None = None,
) -> list[TableRow]:
    """One row per method that ran in the scenario, in the order in which they were requested."""
    names = domains_of(runs_of(comparison, scenario), protocol)
    runs = [comparison.of(method, scenario) for method in comparison.methods]
    further = further_of(runs_of(comparison, scenario))
    return [_row(found, names, protocol, choice, threshold, further) for found in runs if found]


def further_of(runs: Sequence[RunResult]) -> tuple[str, ...]:
    """The measures that have columns beside AVG: where classes are uneven."""
    return tuple(FURTHER) if uneven(runs) else ()


def _row(
    runs: Sequence[RunResult],
    names: Sequence[str],
    protocol: str,
    choice: Choice,
    threshold: float | None,
    further: Sequence[str],
) -> TableRow:
    outcomes = [o for r in runs if (o := r.outcome(protocol, choice))]
    traffic = [per_round(r) for r in runs]
    return TableRow(
        method=runs[0].label,
        domains={d: cell_of(runs, protocol, d, choice) for d in names},
        **{m: cell_of(runs, protocol, m, choice) for m in MEASURES},
        rounds_to=None
        if threshold is None
        else Cell.of(n for r in runs if (n := r.rounds_to(threshold, protocol)) is not None),
        up=fmean(t["up"] for t in traffic),
        down=fmean(t["down"] for t in traffic),
        seeds=len({r.config.seed for r in runs}),
        rules=tuple(dict.fromkeys(o.rule for o in outcomes)),
        further={m: cell_of(runs, protocol, m, choice) for m in further},
    )


def uneven(runs: Sequence[RunResult]) -> bool:
    """Whether accuracy alone misleads: test samples of some domain are unevenly distributed.

    That is, its largest class has more than ``UNEVEN`` times as many as its smallest one that
    occurs, by the confusion matrices of the selected rounds. Several labels per sample always
    count as uneven: most answers are no. Where nothing is known of the classes, nothing is said.
    """
    if any(r.config.scenario.objective == "multi-label" for r in runs):
        return True
    for outcome in (o for r in runs for p in r.summary["protocols"] if (o := r.outcome(p))):
        for cells in outcome.metrics.confusion.values():
            counts: Counter[int] = Counter()
            for true, _, count in cells:
                counts[true] += count
            if max(counts.values()) > UNEVEN * min(counts.values()):
                return True
    return False


def runs_of(comparison: Comparison, scenario: str) -> list[RunResult]:
    """All runs in one scenario."""
    return [r for r in comparison.results if comparison.scenario_of(r) == scenario]


def domains_of(runs: Sequence[RunResult], protocol: str) -> list[str]:
    """The domains on which a protocol is scored, in the scenario's order."""
    outcomes = [o for r in runs if (o := r.outcome(protocol))]
    scored = dict.fromkeys(d for o in outcomes for d in o.metrics.domains)
    known = [d for r in runs for d in r.config.scenario.domains if d in scored]
    return list(dict.fromkeys([*known, *scored]))


def measures_of(names: Sequence[str]) -> tuple[str, ...]:
    """AVG, STD, ALL and worst; none of them for a single domain, which they would repeat."""
    return MEASURES if len(names) > 1 else ()


def leaders(cells: Sequence[Cell], oracle: Sequence[bool]) -> list[bool]:
    """Which cell has the best mean with a lead beyond the interval; at most one, often none.

    The lead is that over the second best, and must exceed the half-width of the 95 % interval of
    their difference. A round chosen on test data never wins against one that was chosen fairly.
    """
    honest = any(c.n and not o for c, o in zip(cells, oracle, strict=True))
    fair = [
        i
        for i, (c, o) in enumerate(zip(cells, oracle, strict=True))
        if c.n > 0 and not (honest and o)
    ]
    order = sorted(fair, key=lambda i: -cells[i].mean)
    if len(order) < 2:
        return [False] * len(cells)
    lead = cells[order[0]].minus(cells[order[1]])
    sure = not isnan(lead.interval) and lead.mean > lead.interval
    return [sure and i == order[0] for i in range(len(cells))]


def per_round(result: RunResult) -> dict[str, float]:
    """Bytes of training messages per round, by direction."""
    train, played = result.summary["bytes"]["train"], result.summary["rounds"]
    return {way: count / played for way, count in train.items()}


def size(count: float) -> str:
    """A number of bytes, readable.

    >>> size(31016)
    '31 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def rule_note(rules: Iterable[str]) -> str:
    """How rounds were chosen, as text."""
    return "; ".join(RULES.get(rule, rule) for rule in dict.fromkeys(rules))


def confounders(runs: Sequence[RunResult]) -> dict[str, str]:
    """The scenario's choices that are printed with every number.

    If the runs differ in any setting of the scenario, an extra entry names those settings.
    """
    tables = [r.summary["confounders"] for r in runs]
    keys = dict.fromkeys(k for t in tables for k in t)
    out = {k: " or ".join(dict.fromkeys(t.get(k, NONE) for t in tables)) for k in keys}
    dumps = [r.config.scenario.model_dump(exclude={"summary"}) for r in runs]
    varied = [k for k in dumps[0] if any(d[k] != dumps[0][k] for d in dumps)]
    return out | ({"NOT THE SAME FOR ALL RUNS": ", ".join(varied)} if varied else {})


def seeds_note(found: Sequence[TableRow]) -> str:
    """Number of seeds behind the numbers, and what ± means."""
    low, high = min(row.seeds for row in found), max(row.seeds for row in found)
    if high > 1:
        return f"± 95 % interval over {high if low == high else f'{low} to {high}'} seeds"
    known = any(not isnan(row.avg.interval) for row in found)
    return "1 seed, ± 95 % interval over test samples" if known else "1 seed"


def samples_note(runs: Sequence[RunResult]) -> str:
    """Number of test samples of each domain, as text; empty where it is not known."""
    found: dict[str, int] = {}
    for run in runs:
        found |= run.test_samples
    if len(found) <= 8:
        return ", ".join(f"{name} {count}" for name, count in found.items())
    low, high = min(found.values()), max(found.values())
    return f"{low} to {high} in each of {len(found)} domains, {sum(found.values())} in all"


@dataclass(frozen=True)
class Summary:
    """The table of one scenario: methods x protocols."""

    scenario: str
    columns: dict[str, list[TableRow]]  # by protocol; the rows are the same methods everywhere
    confounders: dict[str, str]
    samples: str = ""  # test samples of each domain
    against: str = ""  # the method that the others are compared with
    differences: Mapping[tuple[str, str], Sequence[Cell]] = field(default_factory=dict)
    measure: str = "Accuracy in per cent"
    further: tuple[str, ...] = ()  # measures that have columns too, as classes are uneven
    tuned: str = ""  # how the settings were chosen, if they were

    @property
    def rows(self) -> list[TableRow]:
        """The rows of the first protocol, one per method."""
        return next(iter(self.columns.values()), [])

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Protocol and measure of each column of numbers."""
        return [(protocol, key) for protocol in self.columns for key in ("avg", *self.further)]

    def heading(self, protocol: str, key: str = "avg") -> str:
        """The title of a column; a choice on test data is marked in it."""
        oracle = any(row.oracle for row in self.columns[protocol])
        name = protocol if key == "avg" else f"{protocol} {FURTHER[key]}"
        return f"{name} (ORACLE: chosen on test data)" if oracle else name

    @property
    def chosen(self) -> str:
        """How rounds were chosen, as text."""
        return rule_note(rule for found in self.columns.values() for r in found for rule in r.rules)

    @property
    def note(self) -> str:
        """What the numbers are: measure, seeds and selection rule."""
        samples = f"; test samples: {self.samples}" if self.samples else ""
        further = ", ".join(FURTHER[key] for key in self.further)
        beside = f" ({further} too, as classes are uneven)" if further else ""
        number = f"{self.measure}{beside}, AVG over domains, {seeds_note(self.rows)}"
        tuned = f"; {self.tuned}" if self.tuned else ""
        return f"{number}; {self.chosen}{tuned}{samples}; bold: a lead beyond the interval"

    @property
    def apart(self) -> list[list[str]]:
        """Per method other than the reference: its label, its difference in each column."""
        table = zip(*self.differences.values(), strict=True) if self.differences else ()
        return [
            [row.method, *map(signed, cells)]
            for row, cells in zip(self.rows, table, strict=False)
            if row.method != self.against
        ]

    @property
    def apart_note(self) -> str:
        """What the differences are."""
        return (
            f"Difference to {self.against}, paired by seed (with one seed: by test sample, where "
            "predictions were kept), ± 95 % interval"
        )

    @property
    def apart_headings(self) -> list[str]:
        """The titles of the columns of :attr:`apart`."""
        return [f"minus {self.against}", *(self.heading(*key) for key in self.keys)]

    @property
    def headings(self) -> list[str]:
        """The titles of all columns of :meth:`lines`."""
        return ["method", *(self.heading(*key) for key in self.keys), "up/round", "down/round"]

    def lines(self, cell: Callable[[Cell, str, bool], T]) -> list[tuple[str, list[T], list[str]]]:
        """Per method: its label, ``cell(value, mark, best)`` per column, bytes up and down."""
        columns = []
        for protocol, key in self.keys:
            found = self.columns[protocol]
            best = leaders([row.cell(key) for row in found], [row.oracle for row in found])
            columns.append(
                [cell(row.cell(key), row.mark, b) for row, b in zip(found, best, strict=True)]
            )
        return [
            (row.method, [column[i] for column in columns], [size(row.up), size(row.down)])
            for i, row in enumerate(self.rows)
        ]


def summaries(comparison: Comparison, against: str | None = None) -> list[Summary]:
    """One summary per scenario, with the differences to a method if one is named.

    ``against`` names it, or the comparison does.
    """
    against = against or comparison.against
    if against is not None and against not in comparison.methods:
        raise UnknownNameError.of("method of these runs", against, comparison.methods)
    return [_summary(comparison, name, against or "") for name in comparison.scenarios]


def _summary(comparison: Comparison, name: str, against: str) -> Summary:
    found = {p: rows(comparison, name, p) for p in comparison.protocols(name)}
    runs = runs_of(comparison, name)
    made = Summary(
        name,
        found,
        confounders(runs),
        samples_note(runs),
        measure=measure_note(runs[0]),
        further=further_of(runs),
        tuned=comparison.tuned,
    )
    if not against:
        return made
    differences = {
        (p, key): [comparison.difference(row.method, against, name, p, key=key) for row in found[p]]
        for p, key in made.keys
    }
    return replace(made, against=against, differences=differences)


def measure_note(result: RunResult) -> str:
    """The measure that a run's tables show, in words."""
    main = result.config.scenario.task.main
    return {"r2": "R2 in per cent"}.get(main, f"{main.capitalize()} in per cent")


def signed(cell: Cell) -> str:
    """A difference with its sign and interval.

    >>> signed(Cell.of([1.0, 2.0, 3.0]))
    '+2.0 ± 2.5'
    """
    return cell.shown if cell.n == 0 or cell.mean < 0 else f"+{cell.shown}"


def choice_name(choice: str, rule: str) -> str:
    """The name of a choice; one made on test data is marked, so that nobody takes it for fair.

    >>> choice_name("selected", "validation"), choice_name("oracle", "oracle")
    ('selected (validation)', 'oracle (chosen on test data)')
    """
    if rule == "oracle":
        mark = "oracle" if choice == "oracle" else f"{choice}: ORACLE"
        return f"{mark} (chosen on test data)"
    return choice if choice == rule else f"{choice} ({rule})"


def measure_name(measure: str) -> str:
    """A measure's name as papers print it."""
    return measure if measure == "worst" else measure.upper()


def joined(pairs: Mapping[str, str]) -> str:
    """Names and values on one line."""
    return "; ".join(f"{key}: {value}" for key, value in pairs.items())


def shared(result: RunResult) -> str:
    """The data-derived payload that leaves a site, by part, as text."""
    found: dict[str, str] = result.summary["shares"]
    return "; ".join(f"{part}: {text}" for part, text in found.items()) or "nothing"
