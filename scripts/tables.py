"""Makes the demo's table and picture for the documentation, three seeds, and the contact sheet.

    python scripts/tables.py          train what is missing (runs/demo, resumable), then write

``fedshift demo`` asks the same questions with one seed. Settings stand in ``scenarios/digits.py``
and were chosen with another seed than these. About half an hour on one core.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from fedshift.claims.verdict import Difference
from fedshift.data.library.embedded import embedded_digits
from fedshift.experiment.demo import QUESTIONS, Question, demonstrate
from fedshift.experiment.progress import ProgressBoard
from fedshift.experiment.scenario import find_scenario
from fedshift.report import figures
from fedshift.report.results import Comparison

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SEEDS = (0, 1, 2)
BLOCK = re.compile(r"(<!-- demo -->\n).*(<!-- end of demo -->)", flags=re.DOTALL)


def main() -> None:
    """Run what is missing, then write the files."""
    contact_sheet().save(DOCS / "assets" / "digits.png", optimize=True)
    with ProgressBoard() as board:
        found = demonstrate(ROOT / "runs" / "demo", board.watch, 1, seeds=SEEDS)
    (DOCS / "tables" / "demo.md").write_text(table(found))
    readme = ROOT / "README.md"
    readme.write_text(BLOCK.sub(rf"\g<1>{short(found)}\g<2>", readme.read_text()))
    figures.save(picture(found), DOCS / "assets" / "demo.png")


def numbers(found: Comparison, question: Question) -> tuple[list[float], list[float]]:
    """Accuracy of method and control at the selected rounds, seed by seed."""
    sides = []
    protocols = question.protocol, question.control_protocol or question.protocol
    for method, protocol in zip((question.method, question.control), protocols, strict=True):
        own = {
            r.config.seed: r.accuracy(protocol)
            for r in found.results
            if (r.label, r.config.scenario.name) == (method, question.scenario)
        }
        sides.append([own[seed] for seed in SEEDS])
    return sides[0], sides[1]


def difference(found: Comparison, question: Question) -> Difference:
    """Method minus control, seed by seed."""
    return Difference(tuple(a - b for a, b in zip(*numbers(found, question), strict=True)))


def concluded(one: Difference) -> str:
    """In a word, by the 95 % interval over seeds."""
    if one.low > 0:
        return "better"
    return "worse" if one.high < 0 else "not told apart"


def asked(question: Question) -> str:
    """The scenario's question, without what follows it."""
    return find_scenario(question.scenario).summary.partition("?")[0] + "?"


def table(found: Comparison) -> str:
    """Every question: both sides, the paired difference, and what it comes to."""
    lines = [
        "| question | scenario | method | control | difference (95 %) | method is |",
        "|---|---|---|---|---|---|",
    ]
    for question in QUESTIONS:
        ours, theirs = numbers(found, question)
        one = difference(found, question)
        beside = question.control_protocol or question.protocol
        lines.append(
            f"| {asked(question)} | `{question.scenario}` | "
            f"`{question.method}` ({question.protocol}) {fmean(ours):.1f} | "
            f"`{question.control}` ({beside}) {fmean(theirs):.1f} | "
            f"{one.mean:+.1f} ± {one.half:.1f} | {concluded(one)} |"
        )
    return "\n".join([*lines, ""])


def short(found: Comparison) -> str:
    """The README's table: as the documentation's, narrower."""
    lines = ["| question | method | control | difference |", "|---|---|---|---|"]
    for question in QUESTIONS:
        ours, theirs = (fmean(side) for side in numbers(found, question))
        one = difference(found, question)
        lines.append(
            f"| {asked(question)} | {question.method} {ours:.1f} | "
            f"{question.control} {theirs:.1f} | {one.mean:+.1f} ± {one.half:.1f} |"
        )
    return "\n".join([*lines, ""])


def picture(found: Comparison) -> Figure:
    """A row for each question: three seeds of the control and of the method, joined by seed."""
    figure, axes = plt.subplots(figsize=(8.0, 4.2), layout="constrained")
    for row, question in enumerate(reversed(QUESTIONS)):
        ours, theirs = numbers(found, question)
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            at = row + 0.14 * (1 - place)
            axes.plot([b, a], [at, at], color="0.75", zorder=1)
        at = [row + 0.14 * (1 - place) for place in range(len(SEEDS))]
        axes.scatter(theirs, at, s=34, marker="o", color="#7f7f7f", zorder=2)
        axes.scatter(ours, at, s=40, marker="D", color="#d95f02", zorder=3)
    axes.set_yticks(
        range(len(QUESTIONS)),
        [f"{q.scenario.partition('/')[2]}: {q.method} or {q.control}" for q in reversed(QUESTIONS)],
    )
    axes.scatter([], [], s=40, marker="D", color="#d95f02", label="method")
    axes.scatter([], [], s=34, marker="o", color="#7f7f7f", label="control")
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    axes.set_xlabel("accuracy on test images (%), one line per seed")
    axes.grid(axis="x", color="0.92")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def contact_sheet(columns: int = 20, scale: int = 2) -> Image.Image:
    """Two of each digit per domain, one row each."""
    rows = []
    for domain in embedded_digits().values():
        order = np.argsort(domain.y.numpy(), kind="stable")
        firsts = np.searchsorted(domain.y.numpy()[order], np.repeat(np.arange(10), 2))
        picks = order[firsts + np.tile([0, 1], 10)][:columns]
        rows.append(np.concatenate(list(domain.x.numpy()[picks]), axis=1))  # (32, 32 * columns, 3)
    sheet = Image.fromarray(np.concatenate(rows))
    return sheet.resize((sheet.width * scale, sheet.height * scale), Image.Resampling.NEAREST)


if __name__ == "__main__":
    main()
