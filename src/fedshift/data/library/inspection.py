"""What is in a prepared dataset: counts, duplicates, rows left out; as table, image and HTML page.

``fedshift data inspect`` calls it. It reads the prepared store only, and never changes it.
"""

from __future__ import annotations

import base64
import html
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from rich.table import Table

from fedshift.base.files import write_bytes
from fedshift.data.library.near import NearDuplicates, find_near
from fedshift.data.library.prepare import (
    Report,
    folder_name,
    read_report,
    read_store,
    rows_of_classes,
)
from fedshift.data.samples import Domain
from fedshift.data.sources.source import content
from fedshift.data.store import read_ids

TILE, LABEL, WIDEST = 48, 96, 20
SPLIT_NAMES = ("train", "val", "test")


@dataclass(frozen=True)
class Inspection:
    """What an inspection found in a dataset."""

    name: str
    domains: Mapping[str, Domain]
    duplicates: Mapping[str, int]
    report: Report
    verified: bool
    near: NearDuplicates = field(default_factory=NearDuplicates)
    columns: Mapping[str, Any] = field(default_factory=dict)  # of a table: roles and objective

    def counts(self) -> list[list[int]]:
        """Rows per class or label (outer) and domain (inner); of a number to predict, all rows."""
        if self.objective == "regression":
            return [[len(domain.y) for domain in self.domains.values()]]
        per = [rows_of_classes(domain) for domain in self.domains.values()]
        return [list(map(int, row)) for row in np.stack(per, axis=1)]

    @property
    def objective(self) -> str:
        """What there is to learn."""
        return next(iter(self.domains.values())).objective

    def numbers(self) -> dict[str, dict[str, float]]:
        """Mean, deviation and range of a number to predict, by domain."""
        if self.objective != "regression":
            return {}
        found = {name: domain.y.numpy().astype(np.float64) for name, domain in self.domains.items()}
        return {
            name: {"mean": y.mean(), "std": y.std(), "min": y.min(), "max": y.max()}
            for name, y in found.items()
        }

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return next(iter(self.domains.values())).classes

    def summary(self) -> dict[str, Any]:
        """The whole inspection as JSON."""
        splits = {
            name: {s: len(domain.rows(i)) for i, s in enumerate(SPLIT_NAMES)}
            for name, domain in self.domains.items()
        }
        shape = list(next(iter(self.domains.values())).shape)
        counts = {
            name: dict(zip(self.classes, column, strict=True))
            for name, column in zip(self.domains, zip(*self.counts(), strict=True), strict=True)
        }
        return {
            "name": self.name, "shape": shape, "splits": splits, "counts": counts,
            "duplicates": dict(self.duplicates), "near_duplicates": dict(self.near.counts),
            "near_pairs": [list(pair) for pair in self.near.pairs], "verified": self.verified,
            "objective": self.objective, "numbers": self.numbers(), "columns": dict(self.columns),
            **self.report,
        }  # fmt: skip


def inspect(name: str, folder: Path, *, verify: bool = False) -> Inspection:
    """Read a prepared folder; ``verify`` compares all checksums."""
    domains = read_store(folder, verify=verify)
    ids = {one: read_ids(folder / folder_name(one)) for one in domains}
    near, columns = find_near(domains, ids), read_columns(folder)
    duplicates, report = find_duplicates(domains), read_report(folder)
    return Inspection(name, domains, duplicates, report, verify, near, columns)


def read_columns(folder: Path) -> dict[str, Any]:
    """Of prepared tables: the role of each column, and where its statistics come from."""
    if not (folder / "table.json").exists():
        return {}
    told: dict[str, Any] = json.loads((folder / "table.json").read_text())
    record = json.loads((folder / "preparation.json").read_text())
    told |= {key: record[key] for key in ("statistics", "leaves", "numbers")}
    return told


def column_lines(found: Inspection) -> list[str]:
    """One line per column of a table, and lines on the target and the statistics."""
    if not found.columns:
        return []
    lines = [f"target: {', '.join(found.columns['target'])} ({found.objective})"]
    for name, one in found.numbers().items():
        lines.append(f"target at {name}: " + ", ".join(f"{k} {v:.4g}" for k, v in one.items()))
    for name, one in found.columns["roles"].items():
        gaps = f", {one['missing']} of {one['rows']} missing" if one["missing"] else ""
        lines.append(f"column {name}: {one['role']} ({one['why']}{gaps})")
    epsilon = found.columns["schema"].get("epsilon")  # of earlier versions: none
    noise = f", with noise: epsilon {epsilon:g} for one row of a site" if epsilon else ""
    lines.append(f"statistics: {found.columns['statistics']}{noise}")
    lines += [f"leaves each site: {what}" for what in found.columns["leaves"]]
    return lines


def find_duplicates(domains: Mapping[str, Domain]) -> dict[str, int]:
    """Count rows with equal content, by place: within a split, across splits, across domains."""
    found_at: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
    for name, domain in domains.items():
        for key, split in zip(content(domain.x.numpy()), domain.split.tolist(), strict=True):
            found_at[key].append((name, split))
    found: Counter[str] = Counter()
    for rows in (rows for rows in found_at.values() if len(rows) > 1):
        for (name, split), count in Counter(rows).items():
            found[f"within {name} {SPLIT_NAMES[split]}"] += count - 1
        for name in {name for name, _ in rows}:
            splits = sorted({split for domain, split in rows if domain == name})
            if len(splits) > 1:
                found[f"across {'/'.join(SPLIT_NAMES[s] for s in splits)} of {name}"] += 1
        if len({name for name, _ in rows}) > 1:
            found["across domains"] += 1
    return {where: count for where, count in sorted(found.items()) if count}


def table(found: Inspection) -> Table:
    """Counts per class and domain; with many domains, per domain and split instead."""
    if len(found.domains) > WIDEST:
        out = Table("domain", *SPLIT_NAMES, "classes", title=found.name)
        for name, domain in found.domains.items():
            marks = [str(len(domain.rows(i))) for i in range(3)]
            out.add_row(name, *marks, str(len(np.flatnonzero(rows_of_classes(domain)))))
        return out
    out = Table("class", title=found.name)
    for name in (*found.domains, "all"):
        out.add_column(name, justify="right")
    for kind, row in zip(found.classes, found.counts(), strict=True):
        out.add_row(kind, *map(str, row), str(sum(row)))
    out.add_section()
    for i, split in enumerate(SPLIT_NAMES):
        sizes = [len(domain.rows(i)) for domain in found.domains.values()]
        out.add_row(split, *map(str, sizes), str(sum(sizes)))
    sizes = [len(domain.y) for domain in found.domains.values()]
    out.add_row("all", *map(str, sizes), str(sum(sizes)))
    return out


def sheet(domains: Mapping[str, Domain]) -> Image.Image | None:
    """A contact sheet: the first image of each class in each domain; None for vectors."""
    shown = list(domains.items())[:WIDEST]
    if any(domain.x.dim() != 4 for _, domain in shown):
        return None
    classes = shown[0][1].classes[:WIDEST]
    page = Image.new("RGB", (LABEL + TILE * len(classes), 16 + TILE * len(shown)), "white")
    pen = ImageDraw.Draw(page)
    for column, kind in enumerate(classes):
        pen.text((LABEL + TILE * column + 2, 2), kind[:8], "black")
    for row, (name, domain) in enumerate(shown):
        pen.text((2, 16 + TILE * row + TILE // 3), name[:15], "black")
        for column in range(len(classes)):
            at = (domain.y == column).nonzero().flatten()
            if len(at):
                tile = Image.fromarray(domain.x[int(at[0])].numpy()).resize((TILE, TILE))
                page.paste(tile, (LABEL + TILE * column, 16 + TILE * row))
    return page


def write_pages(found: Inspection, out: Path) -> list[Path]:
    """Write the contact sheet, if the inputs are images, and a self-contained HTML page."""
    written = []
    picture = ""
    if image := sheet(found.domains):
        buffer = BytesIO()
        image.save(buffer, "PNG")
        written.append(out / f"{found.name}.png")
        write_bytes(written[0], buffer.getvalue())
        code = base64.b64encode(buffer.getvalue()).decode()
        picture = f'<img alt="contact sheet" src="data:image/png;base64,{code}">'
    written.append(out / f"{found.name}.html")
    write_bytes(written[-1], page(found, picture).encode())
    return written


def page(found: Inspection, picture: str) -> str:
    """The HTML page, with ``picture`` as its contact sheet."""
    head = _row(("class", *found.domains), "th")
    body = "".join(
        _row((kind, *row), "td") for kind, row in zip(found.classes, found.counts(), strict=True)
    )
    name = html.escape(found.name)
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:2px 8px;text-align:right}"
    duplicates = [f"{count} {where}" for where, count in found.duplicates.items()]
    near = [f"{count} {where}" for where, count in found.near.counts.items()]
    near += [f"{one} and {other}" for one, other in found.near.pairs]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title>"
        f"<style>{style}</style><h1>{name}</h1><table>{head}{body}</table>{picture}"
        f"{_list('Duplicates', duplicates)}{_list('Near-duplicates', near)}"
        f"{_list('Left out', found.report['left_out'])}"
        f"{_list('Notes', found.report['notes'])}{_list('Columns', column_lines(found))}</html>\n"
    )


def _row(cells: Sequence[object], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells) + "</tr>"


def _list(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines) or "<li>none</li>"
    return f"<h2>{title}</h2><ul>{items}</ul>"
