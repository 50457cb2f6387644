"""Tables of a comparison: on the screen, in Markdown, LaTeX and CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from csv import writer as csv_writer
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedshift.results import Cell, Choice, Comparison, Outcome, RunResult
from fedshift.runs.files import write_bytes

T = TypeVar("T")
NONE = "\N{EN DASH}"
CHOICES: tuple[Choice, ...] = ("selected", "last", "oracle")
MEASURES = ("avg", "std", "all", "worst")
RULES = {
    "validation": "round chosen on validation data",
    "last": "last round, nothing chosen",
    "oracle": "ORACLE: round chosen on test data",
}
TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {c: rf"\{c}" for c in "&%$#_{}"} | {"<": r"\textless{}", ">": r"\textgreater{}"}
TEX |= {"|": r"\textbar{}", "±": r"$\pm$", NONE: "--"}


@dataclass(frozen=True)
class TableRow:
    """One method under one protocol; cells are over seeds, empty where it has no such model."""

    method: str
    domains: dict[str, Cell]
    avg: Cell
    std: Cell  # over domains
    all: Cell
    worst: Cell
    rounds_to: Cell | None  # over the seeds that got there; None if no threshold was asked for
    up: float  # bytes per round, all clients together, mean over seeds
    down: float
    seeds: int
    rules: tuple[str, ...]  # how rounds were chosen

    @property
    def oracle(self) -> bool:
        """Whether a round was chosen on test data."""
        return "oracle" in self.rules

    @property
    def mark(self) -> str:
        """What stands next to each number of this row."""
        return " ORACLE" if self.oracle else ""


def rows(
    comparison: Comparison,
    scenario: str,
    protocol: str,
    choice: Choice = "selected",
    *,
    threshold: float | None = None,
) -> list[TableRow]:
    """One row per method that ran in the scenario, in the order they were asked for."""
    names = domains_of(runs_of(comparison, scenario), protocol)
    runs = [comparison.of(method, scenario) for method in comparison.methods]
    return [_row(found, names, protocol, choice, threshold) for found in runs if found]


def _row(
    runs: Sequence[RunResult],
    names: Sequence[str],
    protocol: str,
    choice: Choice,
    threshold: float | None,
) -> TableRow:
    outcomes = [o for r in runs if (o := r.outcome(protocol, choice))]
    traffic = [per_round(r) for r in runs]
    return TableRow(
        method=runs[0].label,
        domains={d: Cell.of(o.metrics.domains.get(d, nan) for o in outcomes) for d in names},
        **{m: Cell.of(getattr(o.metrics, m) for o in outcomes) for m in MEASURES},
        rounds_to=None
        if threshold is None
        else Cell.of(n for r in runs if (n := r.rounds_to(threshold, protocol)) is not None),
        up=fmean(t["up"] for t in traffic),
        down=fmean(t["down"] for t in traffic),
        seeds=len({r.config.seed for r in runs}),
        rules=tuple(dict.fromkeys(o.rule for o in outcomes)),
    )


def runs_of(comparison: Comparison, scenario: str) -> list[RunResult]:
    """All runs in one scenario."""
    return [r for r in comparison.results if r.config.scenario.name == scenario]


def domains_of(runs: Sequence[RunResult], protocol: str) -> list[str]:
    """Domains a protocol is scored on, in the scenario's order."""
    outcomes = [o for r in runs if (o := r.outcome(protocol))]
    scored = dict.fromkeys(d for o in outcomes for d in o.metrics.domains)
    known = [d for r in runs for d in r.config.scenario.domains if d in scored]
    return list(dict.fromkeys([*known, *scored]))


def measures_of(names: Sequence[str]) -> tuple[str, ...]:
    """AVG, STD, ALL and worst; nothing where there is one domain and they repeat it."""
    return MEASURES if len(names) > 1 else ()


def leaders(cells: Sequence[Cell], oracle: Sequence[bool]) -> list[bool]:
    """Which cells have the best mean as it is printed; no oracle wins over an honest number."""
    honest = any(c.n and not o for c, o in zip(cells, oracle, strict=True))
    fair = [c.n > 0 and not (honest and o) for c, o in zip(cells, oracle, strict=True)]
    best = max((round(c.mean, 1) for c, f in zip(cells, fair, strict=True) if f), default=None)
    return [f and round(c.mean, 1) == best for c, f in zip(cells, fair, strict=True)]


def per_round(result: RunResult) -> dict[str, float]:
    """Bytes of training that crossed the wire in a round, by direction."""
    train, played = result.summary["bytes"]["train"], result.summary["rounds"]
    return {way: count / played for way, count in train.items()}


def size(count: float) -> str:
    """Bytes for people.

    >>> size(31016)
    '31 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def rule_note(rules: Iterable[str]) -> str:
    """How rounds were chosen, in words."""
    return "; ".join(RULES.get(rule, rule) for rule in dict.fromkeys(rules))


def confounders(runs: Sequence[RunResult]) -> dict[str, str]:
    """The choices printed with every number; one that is not the same for all runs says so."""
    tables = [r.summary["confounders"] for r in runs]
    keys = dict.fromkeys(k for t in tables for k in t)
    out = {k: " or ".join(dict.fromkeys(t.get(k, NONE) for t in tables)) for k in keys}
    dumps = [r.config.scenario.model_dump(exclude={"summary"}) for r in runs]
    varied = [k for k in dumps[0] if any(d[k] != dumps[0][k] for d in dumps)]
    return out | ({"NOT THE SAME FOR ALL RUNS": ", ".join(varied)} if varied else {})


def seeds_note(found: Sequence[TableRow]) -> str:
    """Over how many seeds the numbers are; with one there is no deviation to speak of."""
    low, high = min(row.seeds for row in found), max(row.seeds for row in found)
    if high == 1:
        return "1 seed"
    return f"mean ± std over {high if low == high else f'{low} to {high}'} seeds"


@dataclass(frozen=True)
class Summary:
    """One scenario: methods x protocols."""

    scenario: str
    columns: dict[str, list[TableRow]]  # by protocol; the rows are the same methods everywhere
    confounders: dict[str, str]

    @property
    def rows(self) -> list[TableRow]:
        """The methods, under the first protocol."""
        return next(iter(self.columns.values()), [])

    def heading(self, protocol: str) -> str:
        """A column's name; an oracle is called one."""
        oracle = any(row.oracle for row in self.columns[protocol])
        return f"{protocol} (ORACLE: chosen on test data)" if oracle else protocol

    @property
    def chosen(self) -> str:
        """How rounds were chosen, in words."""
        return rule_note(rule for found in self.columns.values() for r in found for rule in r.rules)

    @property
    def note(self) -> str:
        """What the numbers are."""
        return f"Accuracy in per cent, AVG over domains, {seeds_note(self.rows)}; {self.chosen}"

    @property
    def headings(self) -> list[str]:
        """Of :meth:`lines`."""
        return ["method", *map(self.heading, self.columns), "up/round", "down/round"]

    def lines(self, cell: Callable[[TableRow, bool], T]) -> list[tuple[str, list[T], list[str]]]:
        """Per method: its label, ``cell(row, best)`` per protocol, bytes up and down."""
        columns = []
        for found in self.columns.values():
            best = leaders([row.avg for row in found], [row.oracle for row in found])
            columns.append([cell(row, b) for row, b in zip(found, best, strict=True)])
        return [
            (row.method, [column[i] for column in columns], [size(row.up), size(row.down)])
            for i, row in enumerate(self.rows)
        ]


def summaries(comparison: Comparison) -> list[Summary]:
    """One per scenario."""
    return [
        Summary(
            name,
            {p: rows(comparison, name, p) for p in comparison.protocols(name)},
            confounders(runs_of(comparison, name)),
        )
        for name in comparison.scenarios
    ]


def console(comparison: Comparison) -> RenderableType:
    """One table per scenario, and what its numbers rest on."""
    return Group(*(part for summary in summaries(comparison) for part in _screen(summary)))


def _screen(summary: Summary) -> Iterable[RenderableType]:
    table = _table(summary.scenario, summary.headings)
    for method, cells, traffic in summary.lines(_shown):
        table.add_row(Text(method), *cells, *traffic)
    yield table
    yield Text(summary.note)
    yield Text(_joined(summary.confounders) + "\n", style="dim")


def _shown(row: TableRow, best: bool) -> Text:
    text = Text(str(row.avg), style="bold" if best else "")
    return text.append(row.mark, style="bold red")


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD)
    for i, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if i else "left", overflow="fold")
    return table


def _joined(pairs: dict[str, str]) -> str:
    return "; ".join(f"{key}: {value}" for key, value in pairs.items())


def detail(result: RunResult) -> RenderableType:
    """One run: every protocol at the three rounds, traffic, sharing, confounders."""
    place, facts = result.config.scenario, result.summary
    head = Text(result.label, style="bold")
    head.append(f"  in {place.name}, seed {facts['seed']}, {facts['rounds']} rounds\n", "not bold")
    known = [p for p in place.protocols if p in facts["protocols"]]
    missing = ", ".join(p for p in place.protocols if p not in known)
    lines = [f"{missing}: {NONE} (the method has no such model)"] if missing else []
    lines += [f"traffic: {_traffic(result)}", f"shared beside weights: {shared(result)}"]
    dim = Text(_joined(facts["confounders"]), style="dim")
    return Group(head, *(_protocol(result, p) for p in known), *map(Text, lines), dim)


def _protocol(result: RunResult, protocol: str) -> Table:
    names = domains_of([result], protocol)
    measures = measures_of(names)
    table = _table(protocol, ["choice", "round", *names, *map(measure_name, measures)])
    for choice in CHOICES:
        if outcome := result.outcome(protocol, choice):
            values = [outcome.metrics.domains[d] for d in names]
            values += [getattr(outcome.metrics, m) for m in measures]
            name = choice_name(choice, outcome.rule)
            table.add_row(name, str(outcome.round), *(f"{v:.1f}" for v in values))
    return table


def choice_name(choice: str, rule: str) -> str:
    """A choice in words that cannot be taken for a fair one if it is not.

    >>> choice_name("selected", "validation"), choice_name("oracle", "oracle")
    ('selected (validation)', 'oracle (chosen on test data)')
    """
    if rule == "oracle":
        mark = "oracle" if choice == "oracle" else f"{choice}: ORACLE"
        return f"{mark} (chosen on test data)"
    return choice if choice == rule else f"{choice} ({rule})"


def measure_name(measure: str) -> str:
    """As the papers print it."""
    return measure if measure == "worst" else measure.upper()


def shared(result: RunResult) -> str:
    """Data-derived payload that leaves a site, by part."""
    found: dict[str, str] = result.summary["shares"]
    return "; ".join(f"{part}: {text}" for part, text in found.items()) or "nothing"


def _traffic(result: RunResult) -> str:
    each, total = per_round(result), result.summary["bytes"]["total"]
    return (
        f"{size(each['up'])} up and {size(each['down'])} down per round of training; "
        f"{size(total['up'])} up and {size(total['down'])} down in all, scoring included"
    )


def markdown(comparison: Comparison) -> str:
    """One table per scenario; the best mean is bold."""
    return "\n".join(_markdown(summary) for summary in summaries(comparison))


def _markdown(summary: Summary) -> str:
    def cell(row: TableRow, best: bool) -> str:
        return (f"**{row.avg}**" if best else str(row.avg)) + row.mark

    lines = [summary.headings, ["---", *["---:"] * (len(summary.headings) - 1)]]
    lines += [
        [_markdown_text(method), *cells, *sizes] for method, cells, sizes in summary.lines(cell)
    ]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    head = f"### {_markdown_text(summary.scenario)}"
    return f"{head}\n\n{table}\n{summary.note}.\n\n{_joined(summary.confounders)}.\n"


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def latex(comparison: Comparison) -> str:
    """One booktabs table per scenario; the best mean is bold."""
    return "\n".join(_latex(summary) for summary in summaries(comparison))


def _latex(summary: Summary) -> str:
    def cell(row: TableRow, best: bool) -> str:
        return (rf"\textbf{{{tex(str(row.avg))}}}" if best else tex(str(row.avg))) + row.mark

    body = [[tex(method), *cells, *sizes] for method, cells, sizes in summary.lines(cell)]
    lines = [" & ".join(line) + r" \\" for line in [list(map(tex, summary.headings)), *body]]
    caption = f"{summary.scenario}. {summary.note}. Protocols: {', '.join(summary.columns)}."
    return "\n".join(
        [
            r"\begin{table}\centering",
            rf"  \caption{{{tex(caption)}}}",
            rf"  \label{{tab:{re.sub(r'[^A-Za-z0-9]+', '-', summary.scenario)}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(summary.headings) - 1)}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"  \par\smallskip\footnotesize {tex(_joined(summary.confounders))}.",
            "\\end{table}\n",
        ]
    )


def tex(text: str) -> str:
    r"""Plain text for LaTeX.

    >>> print(tex("lr_decay 5%"))
    lr\_decay 5\%
    """
    return "".join(TEX.get(char, char) for char in text)


def csv(comparison: Comparison) -> str:
    """One line per run, protocol, choice and value; what a method has no model for has no line."""
    out = io.StringIO()
    sheet = csv_writer(out, lineterminator="\n")
    head = "run method scenario seed protocol choice rule round measure domain value"
    sheet.writerow(head.split())
    for result in comparison.results:
        config = result.config
        first = [config.name, result.label, config.scenario.name, config.seed]
        for protocol in result.summary["protocols"]:
            for choice in CHOICES:
                if outcome := result.outcome(protocol, choice):
                    place = [*first, protocol, choice, outcome.rule, outcome.round]
                    sheet.writerows([*place, *line] for line in _values(outcome))
    return out.getvalue()


def _values(outcome: Outcome) -> Iterable[tuple[str, str, float]]:
    for domain, value in outcome.metrics.domains.items():
        yield "accuracy", domain, value
    for measure in MEASURES:
        yield measure, "", getattr(outcome.metrics, measure)


def write(text: str, path: Path) -> None:
    """Put a table into a file, atomically."""
    write_bytes(path, text.encode())
