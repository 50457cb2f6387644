"""Tables as text: Markdown, LaTeX and CSV.

The command ``report`` writes them. All numbers come from ``report.tables``; no format may compute,
round or choose numbers of its own, and names from users are escaped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from csv import writer as csv_writer
from pathlib import Path

from fedshift.base.files import write_bytes
from fedshift.report.results import Comparison, Outcome
from fedshift.report.tables import CHOICES, MEASURES, NONE, Summary, TableRow, joined, summaries

TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {c: rf"\{c}" for c in "&%$#_{}"} | {"<": r"\textless{}", ">": r"\textgreater{}"}
TEX |= {"|": r"\textbar{}", "±": r"$\pm$", NONE: "--"}


def markdown(comparison: Comparison) -> str:
    """One Markdown table per scenario; the best mean of each column is bold."""
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
    return f"{head}\n\n{table}\n{summary.note}.\n\n{joined(summary.confounders)}.\n"


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def latex(comparison: Comparison) -> str:
    """One booktabs table per scenario; the best mean of each column is bold."""
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
            rf"  \par\smallskip\footnotesize {tex(joined(summary.confounders))}.",
            "\\end{table}\n",
        ]
    )


def tex(text: str) -> str:
    r"""Escape plain text for LaTeX.

    >>> print(tex("lr_decay 5%"))
    lr\_decay 5\%
    """
    return "".join(TEX.get(char, char) for char in text)


def csv(comparison: Comparison) -> str:
    """One line per run, protocol, choice and value; no line where a method has no such model."""
    out = io.StringIO()
    sheet = csv_writer(out, lineterminator="\n")
    titles = "run method scenario seed protocol choice rule round measure domain value"
    sheet.writerow(titles.split())
    for result in comparison.results:
        config = result.config
        first = [config.name, result.label, config.scenario_label, config.seed]
        for protocol in result.summary["protocols"]:
            for choice in CHOICES:
                if outcome := result.outcome(protocol, choice):
                    head = [*first, protocol, choice, outcome.rule, outcome.round]
                    lines = _values(outcome, config.scenario.task.main)
                    sheet.writerows([*head, *line] for line in lines)
    return out.getvalue()


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


def write(text: str, path: Path) -> None:
    """Write a table to a file, atomically."""
    write_bytes(path, text.encode())
