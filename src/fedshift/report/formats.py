"""Tables as text: Markdown, LaTeX, CSV and JSON.

The command ``report`` writes them. All numbers come from ``report.tables``; no format may compute,
round or choose numbers of its own, and names from users are escaped.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from csv import writer as csv_writer
from json import dumps
from pathlib import Path
from typing import Any

from fedshift.base.files import write_bytes
from fedshift.base.version import __version__
from fedshift.report.answers import Answer, answers
from fedshift.report.cells import Cell
from fedshift.report.results import Comparison, Outcome
from fedshift.report.tables import (
    CHOICES,
    MEASURES,
    NONE,
    Summary,
    TableRow,
    joined,
    rows,
    summaries,
)

TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {c: rf"\{c}" for c in "&%$#_{}"} | {"<": r"\textless{}", ">": r"\textgreater{}"}
TEX |= {"|": r"\textbar{}", "±": r"$\pm$", NONE: "--"}


def markdown(comparison: Comparison, against: str | None = None) -> str:
    """One Markdown table per scenario, and the differences to ``against`` if it is given."""
    found = summaries(comparison, against)
    return "\n".join(_markdown(summary, answers(comparison, summary)) for summary in found)


def _markdown(summary: Summary, answered: Sequence[Answer]) -> str:
    def cell(value: Cell, mark: str, best: bool) -> str:
        return (f"**{value.shown}**" if best else value.shown) + mark

    body = [[markdown_text(method), *cells, *sizes] for method, cells, sizes in summary.lines(cell)]
    table = markdown_table(summary.headings, body)
    head = f"### {markdown_text(summary.scenario)}"
    said = "".join(
        f"{markdown_text(a.protocol)}: **{markdown_text(a.headline)}.** "
        f"{markdown_text(a.reason)}\n\n"
        for a in answered
    )
    text = f"{head}\n\n{said}{table}\n{summary.note}.\n\n"
    if summary.apart:
        heads = [markdown_text(summary.apart_headings[0]), *summary.apart_headings[1:]]
        text += markdown_table(heads, [[markdown_text(r[0]), *r[1:]] for r in summary.apart])
        text += f"\n{markdown_text(summary.apart_note)}.\n\n"
    return f"{text}{joined(summary.confounders)}.\n"


def markdown_table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is text; the cells are Markdown already."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_text(text: str) -> str:
    """Escape plain text for Markdown."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def latex(comparison: Comparison, against: str | None = None) -> str:
    """One booktabs table per scenario; bold where a lead is beyond the interval.

    With ``against``, the differences to that method are a second table below the first.
    """
    return "\n".join(_latex(summary) for summary in summaries(comparison, against))


def _latex(summary: Summary) -> str:
    def cell(value: Cell, mark: str, best: bool) -> str:
        text = tex(value.shown)
        return (rf"\textbf{{{text}}}" if best else text) + mark

    body = [[tex(method), *cells, *sizes] for method, cells, sizes in summary.lines(cell)]
    caption = f"{summary.scenario}. {summary.note}. Protocols: {', '.join(summary.columns)}."
    lines = [
        r"\begin{table}\centering",
        rf"  \caption{{{tex(caption)}}}",
        rf"  \label{{tab:{re.sub(r'[^A-Za-z0-9]+', '-', summary.scenario)}}}",
        *tabular(summary.headings, body),
    ]
    if summary.apart:
        apart = [list(map(tex, line)) for line in summary.apart]
        lines += [r"  \par\medskip", *tabular(summary.apart_headings, apart)]
        lines += [rf"  \par\smallskip\footnotesize {tex(summary.apart_note)}."]
    said = rf"  \par\smallskip\footnotesize {tex(joined(summary.confounders))}."
    return "\n".join([*lines, said, "\\end{table}\n"])


def tabular(heads: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of one table; ``body`` is LaTeX already, headings are plain text."""
    lines = [" & ".join(line) + r" \\" for line in [list(map(tex, heads)), *body]]
    return [
        rf"  \begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"    \toprule",
        f"    {lines[0]}",
        r"    \midrule",
        *(f"    {line}" for line in lines[1:]),
        r"    \bottomrule",
        r"  \end{tabular}",
    ]


def tex(text: str) -> str:
    r"""Escape plain text for LaTeX.

    >>> print(tex("lr_decay 5%"))
    lr\_decay 5\%
    """
    return "".join(TEX.get(char, char) for char in text)


def csv(comparison: Comparison, against: str | None = None) -> str:
    """One line per run, protocol, choice and value; no line where a method has no such model.

    ``interval`` is half of the 95 % interval over test samples, where it is known. Differences to
    ``against`` are lines without a run and a seed, and their intervals those of tables.
    """
    out = io.StringIO()
    sheet = csv_writer(out, lineterminator="\n")
    titles = "run method scenario seed protocol choice rule round measure domain value interval"
    sheet.writerow(titles.split())
    for result in comparison.results:
        config = result.config
        first = [config.name, result.label, comparison.scenario_of(result), config.seed]
        for protocol in result.summary["protocols"]:
            for choice in CHOICES:
                if outcome := result.outcome(protocol, choice):
                    head = [*first, protocol, choice, outcome.rule, outcome.round]
                    lines = _values(outcome, config.scenario.task.main)
                    sheet.writerows([*head, *line, ""] for line in lines)
    for summary in summaries(comparison, against):
        sheet.writerows(_apart(summary))
    return out.getvalue()


def _apart(summary: Summary) -> Iterable[list[str | float]]:
    """Lines with the difference to the reference: of each method, protocol and measure."""
    for (protocol, key), cells in summary.differences.items():
        for row, cell in zip(summary.columns[protocol], cells, strict=True):
            if row.method != summary.against and cell.n:
                head = ["", row.method, summary.scenario, "", protocol, "selected"]
                about = ["/".join(row.rules), "", f"{key} minus {summary.against}", ""]
                known = "" if math.isnan(cell.interval) else cell.interval
                yield [*head, *about, cell.mean, known]


def _values(outcome: Outcome, main: str) -> Iterable[tuple[str, str, float]]:
    """(measure, domain, value) of each domain's main measure and of every other one."""
    found = outcome.metrics
    for domain, value in found.domains.items():
        yield main, domain, value
    for measure in MEASURES:
        yield measure, "", found.value(measure)
    for domain, row in found.by_domain.items():
        yield from ((name, domain, value) for name, value in row.items() if name != main)
    yield from ((name, "", value) for name, value in found.measures.items() if name != main)


def json(comparison: Comparison, against: str | None = None) -> str:
    """Everything that the page's tables are made of, as one JSON object; unknown numbers are null.

    A number is ``{"mean", "std", "n", "interval", "values"}``: over seeds, with half of the 95 %
    interval; ``values`` are those of the seeds.
    """
    found = {
        "fedshift": __version__,
        "methods": comparison.methods,
        "notes": comparison.notes,
        "failed": [{"run": f.config.name, "reason": f.reason} for f in comparison.failures],
        "scenarios": [_scenario(comparison, s) for s in summaries(comparison, against)],
        "runs": [
            {"run": r.config.name, "method": r.label, "scenario": comparison.scenario_of(r)}
            | {"seed": r.config.seed, "rounds": r.summary["rounds"], "bytes": r.summary["bytes"]}
            for r in comparison.results
        ],
    }
    return dumps(found, indent=1, allow_nan=False) + "\n"


def _scenario(comparison: Comparison, summary: Summary) -> dict[str, Any]:
    return {
        "scenario": summary.scenario,
        "note": summary.note,
        "confounders": summary.confounders,
        "answers": [
            {"protocol": a.protocol, "verdict": a.verdict, "best": a.best, "second": a.second}
            | {"lead": _cell(a.lead), "level": a.level, "text": f"{a.headline}. {a.reason}"}
            for a in answers(comparison, summary)
        ],
        "protocols": {
            protocol: {
                choice: [_line(row) for row in rows(comparison, summary.scenario, protocol, choice)]
                for choice in CHOICES
            }
            for protocol in summary.columns
        },
        "against": summary.against or None,
        "differences": [
            {"method": row.method, "protocol": protocol, "measure": key, "difference": _cell(cell)}
            for (protocol, key), cells in summary.differences.items()
            for row, cell in zip(summary.columns[protocol], cells, strict=True)
            if row.method != summary.against
        ],
    }


def _line(row: TableRow) -> dict[str, Any]:
    """A method's row of a table."""
    numbers = {m: _cell(getattr(row, m)) for m in MEASURES}
    domains = {name: _cell(cell) for name, cell in row.domains.items()}
    about = {"method": row.method, "seeds": row.seeds, "rules": row.rules}
    return about | numbers | {"domains": domains, "up": row.up, "down": row.down}


def _cell(cell: Cell) -> dict[str, Any]:
    known = {"mean": cell.mean, "std": cell.std, "interval": cell.interval}
    values = [v if math.isfinite(v) else None for v in cell.values]
    found = {k: v if math.isfinite(v) else None for k, v in known.items()}
    return found | {"n": cell.n, "values": values}


def write(text: str, path: Path) -> None:
    """Write a table to a file, atomically."""
    write_bytes(path, text.encode())
