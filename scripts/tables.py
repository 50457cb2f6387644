"""Makes the table and the pictures of docs/digits.md; resumable, about 20 minutes on two cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import fedshift
from fedshift.core.registry import METHODS
from fedshift.data.library.embedded import embedded_digits
from fedshift.experiment.progress import ProgressBoard
from fedshift.report import figures, html
from fedshift.report.results import Comparison

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "tables"
DOCS = ROOT / "docs"
SEEDS = range(5)
SHOWN = ("local", "fedavg", "fedbn", "ditto")  # in the picture; the table has all


def main() -> None:
    """Run what is missing, then write the files."""
    contact_sheet().save(DOCS / "assets" / "digits.png", optimize=True)
    with ProgressBoard() as board:
        table = fedshift.compare(list(METHODS.entries()), seeds=SEEDS, out=RUNS, watch=board.watch)
        pooled = fedshift.compare(
            ["fedavg"], ["digits-pooled"], seeds=SEEDS, out=RUNS, watch=board.watch
        )
    (DOCS / "tables").mkdir(exist_ok=True)
    (DOCS / "tables" / "digits.md").write_text(accuracies(table, pooled))
    (DOCS / "tables" / "domains.md").write_text(domains(table, pooled))
    shown = Comparison([r for r in table.results if r.label in SHOWN])
    figures.save(figures.curves(shown, "digits", "personal"), DOCS / "assets" / "curves.png")
    figures.save(figures.domains(shown, "digits", "personal"), DOCS / "assets" / "domains.png")
    print(html.write(table, RUNS / "report.html"))


def accuracies(table: Comparison, pooled: Comparison) -> str:
    """AVG per protocol, mean and deviation over seeds."""
    protocols = table.protocols("digits")
    lines = ["| method | " + " | ".join(protocols) + " |", "|---|" + "---|" * len(protocols)]
    for method in sorted(table.methods, key=lambda m: table.cell(m, "digits", "personal").mean):
        cells = [str(table.cell(method, "digits", p)) for p in protocols]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    found = {p: str(pooled.cell("fedavg", "digits-pooled", p)) for p in ("global", "unseen")}
    row = [found.get(p, "") for p in protocols]
    return "\n".join([*lines, "| *pooled data* | " + " | ".join(row) + " |", ""])


def domains(table: Comparison, pooled: Comparison) -> str:
    """Per-domain accuracies of the reference methods."""
    names = ("scan", "photo", "print", "meter", "avg", "worst")
    rows = [(m, table, "digits", "personal") for m in ("local", "fedavg", "fedbn")]
    rows += [("fedavg", table, "digits", "global"), ("fedavg", pooled, "digits-pooled", "global")]
    lines = ["| model | protocol | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for method, source, scenario, protocol in rows:
        label = "*pooled data*" if source is pooled else f"`{method}`"
        cells = [str(source.cell(method, scenario, protocol, name)) for name in names]
        lines.append(f"| {label} | {protocol} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


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
