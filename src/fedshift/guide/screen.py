"""A diagnosis on the screen: sentences, then small tables that fit 80 columns.

The command line prints what this yields. Names come from files, so they are text and never markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from fedshift.base.logs import printable
from fedshift.guide.diagnosis import Diagnosis
from fedshift.guide.shift import Told
from fedshift.report.fitted import FittedTable

COLUMNS = 8  # of a table's columns, those that differ most
CLASSES = 12  # that have a column each
LINES = 10  # files left out, pairs of copies


def shown(found: Diagnosis) -> Iterator[RenderableType]:
    """Everything that is printed, in order."""
    for line in found.problems:
        yield Text(printable(f"look first: {line}"), style="bold")
    for line in found.findings:
        yield Text(printable(line))
    for table in _tables(found):
        yield Text(f"\n{table.title}", style="bold")
        yield replace(table, title="")
    yield from _lines(found)


def _tables(found: Diagnosis) -> Iterator[FittedTable]:
    yield _sites(found)
    if found.objective != "regression" and len(found.classes) <= CLASSES:
        yield _labels(found)
    if found.shift.statistics:
        yield _statistics(found)
    what = "100 R2" if found.objective == "regression" else "accuracy in %"
    if found.shift.crossed:
        title = f"A linear model trained at the row's site, {what} at the column's"
        yield _matrix(title, found.shift.crossed, [*found.shift.looked_at])
    if found.shift.pairs:
        both = {(b, a): told for (a, b), told in found.shift.pairs.items()}
        title = "Two sites told apart by a linear model, in % (50: alike)"
        yield _matrix(title, {**found.shift.pairs, **both}, [*found.shift.looked_at])


def _sites(found: Diagnosis) -> FittedTable:
    heads = ["site", "rows", "train", "val", "test", "looked at"]
    lines = [
        [printable(name), *map(str, (own.rows, own.train, own.val, own.test)),
         str(found.shift.looked_at.get(name, 0))]
        for name, own in found.sites.items()
    ]  # fmt: skip
    return FittedTable("Sites", heads, lines)


def _labels(found: Diagnosis) -> FittedTable:
    """Shares of the classes at each site, and how far they are from all sites'."""
    far = {one.site: one.distance for one in found.labels.shifts}
    lines = []
    for name, own in found.labels.counts.items():
        rows = found.sites[name]
        total = max(1, rows.train + rows.val + rows.test)
        shares = [f"{100 * count / total:.0f}" for count in own.values()]
        lines.append([printable(name), *shares, f"{100 * far[name]:.0f}"])
    heads = ["site", *map(printable, found.classes), "distance"]
    return FittedTable("Labels in %, and distance from the mean over sites", heads, lines)


def _statistics(found: Diagnosis) -> FittedTable:
    """Means of what differs most; all of the few measures of images."""
    every = [*next(iter(found.shift.statistics.values()))]
    most = sorted(found.shift.differences, key=lambda one: -abs(one.deviations))
    names = list(dict.fromkeys([*(one.what for one in most), *every]))[:COLUMNS]
    names = sorted(names, key=every.index)
    lines = [
        [printable(site), *(f"{own[name][0]:.3g}" for name in names)]
        for site, own in found.shift.statistics.items()
    ]
    more = f" ({len(every)} columns; these differ most)" if len(every) > len(names) else ""
    return FittedTable(f"Means of the inputs{more}", ["site", *map(printable, names)], lines)


def _matrix(title: str, told: Mapping[tuple[str, str], Told], sites: Sequence[str]) -> FittedTable:
    lines = [
        [printable(a), *(f"{told[a, b].value:.0f}" if (a, b) in told else "-" for b in sites)]
        for a in sites
    ]
    return FittedTable(title, ["", *map(printable, sites)], lines)


def _lines(found: Diagnosis) -> Iterator[Text]:
    for kind, lines in (
        ("note", found.notes),
        ("left out", found.left_out),
        ("near-duplicate", [f"{a} and {b}" for a, b in found.copies.pairs]),
    ):
        for line in lines[:LINES]:
            yield Text(printable(f"{kind}: {line}"))
        if len(lines) > LINES:
            yield Text(f"{kind}: {len(lines) - LINES} more")
    yield Text("What this look cannot see: " + "; ".join(found.cannot_see) + ".")
