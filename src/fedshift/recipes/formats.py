"""A filled recipe as Markdown, LaTeX, CSV or HTML; names and texts are escaped.

All numbers come from ``recipes.table``; no format may compute, round or choose any of its own.
Markdown has paper and ours in one cell, LaTeX and HTML in two, CSV has a line per cell.
"""

from __future__ import annotations

import io
import math
import re
from csv import writer as csv_writer
from html import escape

from fedshift.recipes.recipe import protocol_of
from fedshift.recipes.table import FilledRecipe, SideBySide
from fedshift.report.formats import tex

LINES = "recipe scale row method column scenario protocol metric rule equal"
LINES += " paper paper_spread ours interval n why"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "div{overflow-x:auto}table{border-collapse:collapse}"
    "th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}.paper{color:#777}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"
)


def markdown(filled: FilledRecipe) -> str:
    """A heading, the caption, the table with "paper / ours" in each cell, and the legend."""
    recipe = filled.recipe
    heads = ["", *(plain(column.name) for column in recipe.column)]
    lines = [heads, ["---", *["---:"] * len(recipe.column)]]
    for row in recipe.rows:
        cells = (filled.cells[row.name, column.name] for column in recipe.column)
        lines.append([plain(row.name), *(f"{c.published} / {c.measured}" for c in cells)])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    legend = "".join(f"- {plain(line)}\n" for line in filled.legend)
    return f"### {plain(recipe.name)}\n\n{plain(filled.caption)}\n\n{table}\n{legend}"


def plain(text: str) -> str:
    """Escape plain text for Markdown, on one line."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))


def latex(filled: FilledRecipe) -> str:
    """A booktabs table with two columns, paper and ours, for each of the recipe's."""
    recipe = filled.recipe
    count = len(recipe.column)
    heads = [rf"\multicolumn{{2}}{{c}}{{{tex(column.name)}}}" for column in recipe.column]
    body = []
    for row in recipe.rows:
        cells = [filled.cells[row.name, column.name] for column in recipe.column]
        pairs = [tex(text) for cell in cells for text in (cell.published, cell.measured)]
        body.append(" & ".join([tex(row.name), *pairs]) + r" \\")
    legend = " ".join(tex(_sentence(line)) for line in filled.legend)
    lines = [
        r"\begin{table}\centering",
        rf"  \caption{{{tex(filled.caption)}}}",
        rf"  \label{{tab:{re.sub(r'[^A-Za-z0-9]+', '-', recipe.name)}}}",
        rf"  \begin{{tabular}}{{l{'rr' * count}}}",
        r"    \toprule",
        "    & " + " & ".join(heads) + r" \\",
        "    & " + " & ".join(["paper & ours"] * count) + r" \\",
        r"    \midrule",
        *(f"    {line}" for line in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        rf"  \par\smallskip\footnotesize {legend}",
        r"\end{table}",
    ]
    return "\n".join(lines).replace("\N{MULTIPLICATION SIGN}", r"$\times$") + "\n"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def csv(filled: FilledRecipe) -> str:
    """A heading, and a line per cell."""
    out = io.StringIO()
    sheet = csv_writer(out, lineterminator="\n")
    sheet.writerow(LINES.split())
    recipe = filled.recipe
    for row in recipe.rows:
        for column in recipe.column:
            cell = filled.cells[row.name, column.name]
            mean = f"mean of {', '.join(column.mean_of)}" if column.mean_of else ""
            metric = f"{column.metric} {column.threshold:g}" if column.threshold else column.metric
            first = [recipe.name, filled.scale, row.name, row.method or "", column.name]
            place = [mean or column.scenario or "", protocol_of(recipe, row, column), metric]
            rest = [recipe.rule, recipe.equal, *_numbers(cell), len(cell.ours), cell.why]
            sheet.writerow([*first, *place, *rest])
    return out.getvalue()


def _numbers(cell: SideBySide) -> list[str | float]:
    """Paper, its spread, ours and our interval; empty where there is none."""
    found = (cell.paper, cell.spread, cell.mean, cell.half)
    return ["" if x is None or math.isnan(x) else x for x in found]


def html(filled: FilledRecipe, picture: str = "") -> str:
    """A page of its own: no script, nothing from elsewhere; ``picture`` is SVG of our making."""
    recipe = filled.recipe
    heads = "".join(f'<th colspan="2">{escape(c.name)}</th>' for c in recipe.column)
    kinds = '<th class="paper">paper</th><th>ours</th>' * len(recipe.column)
    body = "".join(
        f"<tr><td>{escape(row.name)}</td>"
        + "".join(_pair(filled.cells[row.name, c.name]) for c in recipe.column)
        + "</tr>\n"
        for row in recipe.rows
    )
    legend = "".join(f"<li>{escape(line)}</li>\n" for line in filled.legend)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(recipe.name)}</title><style>{STYLE}</style></head><body>\n"
        f"<h1>{escape(recipe.name)}</h1>\n<p>{escape(filled.caption)}</p>\n"
        f"<div><table><thead><tr><th></th>{heads}</tr>\n<tr><th></th>{kinds}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>\n{picture}\n<ul>{legend}</ul>\n</body></html>\n"
    )


def _pair(cell: SideBySide) -> str:
    tip = f' title="{escape(cell.why)}"' if cell.why else ""
    return f'<td class="paper">{escape(cell.published)}</td><td{tip}>{escape(cell.measured)}</td>'


FORMATS = {"md": markdown, "latex": latex, "csv": csv, "html": html}
