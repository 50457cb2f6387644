"""Matplotlib figures: accuracy over rounds, accuracy per domain, and the data of each client.

Results, HTML pages and the command line draw with it, but only through ``report.optional``: it is
the one module that imports matplotlib, an optional dependency. The same numbers must give the same
bytes, so nothing may depend on the date or on the user's matplotlib settings.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy.optimize import isotonic_regression

from fedshift.base.errors import ConfigError
from fedshift.base.files import write_bytes
from fedshift.data.dealing.holdings import Holdings
from fedshift.report.cells import Cell
from fedshift.report.further import title
from fedshift.report.looks import look
from fedshift.report.results import Comparison, RunResult
from fedshift.report.tables import TableRow, rows, rule_note, runs_of

INK = "#1f2328"  # colour of text and axes
STYLE = {
    "font.size": 9,
    "text.parse_math": False,  # a label is text, dollar signs included
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.8,
    "svg.hashsalt": "fedshift",
} | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"),
    INK,
)
METADATA: dict[str, dict[str, Any]] = {  # no dates or versions: equal figures, equal bytes
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
NAMED = 20  # classes that a legend names one by one
HATCHES = ("", "///", "...", "xxx", "---", "ooo", "\\\\\\", "+++")
LINE = 0.17  # height of one line of a label, in inches


@contextmanager
def style(**more: str) -> Iterator[None]:
    """Use this project's matplotlib settings inside the block; the user's are restored after it."""
    look: Any = STYLE | {k.replace("_", "."): v for k, v in more.items()}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(look)
        yield


class Drawing(Figure):
    """A figure that shows itself in a notebook, whether or not pyplot was imported there."""

    def _repr_png_(self) -> bytes:
        return png(self)


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Drawing((width, height), dpi=150, layout="constrained")
    return figure, figure.subplots()


def curves(comparison: Comparison, scenario: str, protocol: str) -> Figure:
    """Test accuracy over rounds: mean over seeds, band of one deviation, selected rounds."""
    found = rows(comparison, scenario, protocol)
    drawn = [(i, row) for i, row in enumerate(found) if row.avg.n]
    with style():
        names = [(i, wrapped(row.method, 22)) for i, row in drawn]
        height = max(3.8, 1.2 + LINE * len(names) * tallest(names))
        figure, axes = _blank(6.4, height)
        ends = []
        for i, row in drawn:
            runs = comparison.of(row.method, scenario)
            ends.append(_curve(axes, runs, protocol, i))
        _label_ends(axes, names, ends, height)
        axes.set(xlabel=_below("round", found), ylabel=f"test {_main(comparison, scenario)}, AVG")
        axes.locator_params(axis="x", integer=True)
        _title(axes, f"{scenario}: {protocol}", wrapped(_curves_note(found), 84))
    return figure


def _main(comparison: Comparison, scenario: str) -> str:
    """The measure that the figures show: accuracy, or what the scenario's objective has instead."""
    return title(runs_of(comparison, scenario)[0].config.scenario.task.main)


def _below(label: str, found: Sequence[TableRow]) -> str:
    """The axis label, and below it the methods that are missing because they have no such model."""
    missing = ", ".join(row.method for row in found if not row.avg.n)
    return f"{label}\n\n{wrapped(f'no such model: {missing}', 60)}" if missing else label


def _curves_note(found: Sequence[TableRow]) -> str:
    rules = [rule for row in found for rule in row.rules]
    band = ", band: one std" if max(row.seeds for row in found) > 1 else ""
    return f"{_seeds(found)}{band}; dots: {rule_note(rules)}"


def _seeds(found: Sequence[TableRow]) -> str:
    low, high = min(row.seeds for row in found), max(row.seeds for row in found)
    if high == 1:
        return "1 seed"
    return f"mean over {high if low == high else f'{low} to {high}'} seeds"


def _curve(axes: Axes, runs: Sequence[RunResult], protocol: str, index: int) -> tuple[float, float]:
    """Draw the line, band and dots of one method; returns the end point of the line."""
    known = [dict(r.curve(protocol)) for r in runs if r.outcome(protocol)]
    rounds = sorted(set.intersection(*(set(k) for k in known)))
    mean = [fmean(k[r] for k in known) for r in rounds]
    own = look(index)
    colour = own.colour
    marks: dict[str, Any] = {
        "marker": own.marker,
        "markersize": 4,
        "markevery": max(1, len(rounds) // 12),
    }
    axes.plot(
        rounds, mean, color=colour, linestyle=own.dash, linewidth=1.8, label=runs[0].label, **marks
    )
    if len(known) > 1:
        spread = [stdev(k[r] for k in known) for r in rounds]
        low, high = np.subtract(mean, spread), np.add(mean, spread)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.1, linewidth=0)
    dots = [(o.round, o.metrics.avg) for r in runs if (o := r.outcome(protocol))]
    x, y = zip(*dots, strict=True)
    axes.scatter(x, y, s=14, color=colour, zorder=3, clip_on=False)
    return rounds[-1], mean[-1]


def _label_ends(
    axes: Axes, names: Sequence[tuple[int, str]], ends: Sequence[tuple[float, float]], height: float
) -> None:
    """Write each method's name beside the end of its line; names that overlap are moved apart."""
    low, high = axes.get_ylim()
    gap = LINE * tallest(names) / (height - 1.0) * (high - low)
    levels = spread_out([y for _, y in ends], gap)
    for (i, name), end, level in zip(names, ends, levels, strict=True):
        leader = {"arrowstyle": "-", "color": look(i).colour, "relpos": (0, 0.5)}
        axes.annotate(
            name,
            end,
            (1.05, level),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            arrowprops=leader | {"shrinkA": 2, "shrinkB": 3},
            annotation_clip=False,
        )


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most ``width`` characters.

    >>> wrapped("fedavg + mixup, alpha=0.2", 16).splitlines()
    ['fedavg + mixup,', 'alpha=0.2']
    """
    return "\n".join(textwrap.wrap(text, width))


def tallest(names: Sequence[tuple[int, str]]) -> int:
    """Number of lines of the name with the most lines."""
    return max((name.count("\n") + 1 for _, name in names), default=1)


def spread_out(values: Sequence[float], gap: float) -> list[float]:
    """The nearest positions (least squares) in the same order, at least ``gap`` apart.

    >>> spread_out([10.0, 10.0, 50.0], 4.0)
    [8.0, 12.0, 50.0]
    """
    if not values:
        return []
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    out = np.empty(len(values))
    out[order] = isotonic_regression(np.take(values, order) - steps).x + steps
    return [float(v) for v in out]


def _title(axes: Axes, title: str, note: str) -> None:
    axes.set_title(title, loc="left", weight="bold", fontsize=10, pad=11 * note.count("\n") + 20)
    small: dict[str, Any] = {"fontsize": 8, "alpha": 0.75, "in_layout": False}
    axes.annotate(note, (0, 1), (0, 7), "axes fraction", "offset points", **small)


def domains(comparison: Comparison, scenario: str, protocol: str) -> Figure:
    """Accuracy per domain at the selected round: dots are methods, bars one standard deviation."""
    found = rows(comparison, scenario, protocol)
    names = list(found[0].domains) if found else []
    drawn = [(i, row) for i, row in enumerate(found) if row.avg.n]
    lines = [*names, "AVG"] if len(names) > 1 else names
    with style():
        figure, axes = _blank(6.4, max(2.6, 1.3 + len(lines) * (0.15 + 0.1 * len(drawn))))
        for position, (i, row) in enumerate(drawn):
            cells = [*row.domains.values(), row.avg][: len(lines)]
            shift = 0.72 * ((position + 0.5) / len(drawn) - 0.5)
            _dots(axes, cells, [y + shift for y in range(len(lines))], (i, wrapped(row.method, 22)))
        axes.set(
            xlabel=_below(f"test {_main(comparison, scenario)}", found),
            yticks=range(len(lines)),
            yticklabels=lines,
        )
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        between, whole = [y + 0.5 for y in range(len(lines) - 1)], axes.get_yaxis_transform()
        axes.hlines(between, 0, 1, INK, alpha=0.15, linewidth=0.8, transform=whole)
        _title(axes, f"{scenario}: {protocol}", wrapped(_domains_note(found), 58))
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def _domains_note(found: Sequence[TableRow]) -> str:
    seeds = _seeds(found).replace("mean over", "mean ± std over")
    return f"{seeds}; {rule_note(rule for row in found for rule in row.rules)}"


def _dots(
    axes: Axes, cells: Sequence[Cell], heights: Sequence[float], name: tuple[int, str]
) -> None:
    i, label = name
    axes.errorbar(
        [c.mean for c in cells],
        heights,
        xerr=[0.0 if np.isnan(c.std) else c.std for c in cells],
        fmt=look(i).marker,
        color=look(i).colour,
        markersize=5,
        elinewidth=1.4,
        label=label,
    )


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as png, svg or pdf, by its suffix; equal numbers give equal bytes."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in METADATA:
        known = ", ".join(f".{k}" for k in METADATA)
        raise ConfigError(f"{path} ends in {path.suffix!r}; a figure is one of {known}")
    write_bytes(path, _rendered(figure, kind))
    return path


def png(figure: Figure) -> bytes:
    """The figure as an image for a page; equal numbers give equal bytes."""
    return _rendered(figure, "png")


def inline(figure: Figure, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element for a page that runs no script, such as a model card.

    Ids begin with ``name``, so that several figures on one page do not clash. There is no link to
    the outside. Text stays text, and everything drawn in ``INK`` takes the page's text colour, in
    light and dark mode.
    """
    text = _rendered(figure, "svg", transparent=True, svg_fonttype="none").decode()
    found = re.search(r'viewBox="([^"]*)"[^>]*>(.*)</svg>', text, re.DOTALL)
    assert found is not None, "matplotlib wrote something that is not an svg"
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", found[2], flags=re.DOTALL)
    body = re.sub(r" ?font-family: [^;\"]*;", "", body)  # use the page's font
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body).replace(INK, "currentColor")
    head = f'<svg viewBox="{found[1]}" role="img" aria-label="{escape(description)}">'
    return f"{head}{body}</svg>"


def _rendered(figure: Figure, kind: str, *, transparent: bool = False, **more: str) -> bytes:
    out = io.BytesIO()
    with style(**more):
        figure.savefig(out, format=kind, metadata=METADATA[kind], transparent=transparent)
    return out.getvalue()


def partition(shown: Holdings) -> Figure:
    """Training samples per client: one bar per client, one colour per class.

    Domains are groups of clients, or hatches where clients hold more than one domain.
    """
    n = len(shown.clients)
    figure = Drawing(figsize=(8, 1.5 + 0.24 * n), layout="constrained")
    axes = figure.add_subplot()
    colours = _colours(len(shown.classes))
    _bars(axes, shown, colours)
    axes.set_yticks(range(n), shown.clients)
    axes.set_ylim(n - 0.5, -0.5)  # the first client on top
    axes.set_xlabel("training samples")
    axes.spines[["top", "right"]].set_visible(False)
    _class_legend(figure, axes, shown, colours)
    if shown.mixed:
        _domain_legend(axes, shown)
    else:
        _domain_groups(axes, shown)
    return figure


def _colours(classes: int) -> list[Any]:
    """One colour per class: distinct ones up to twenty classes, a continuous scale beyond."""
    if classes <= NAMED:
        return list(colormaps["tab10" if classes <= 10 else "tab20"](np.arange(classes)))
    return list(colormaps["turbo"](np.linspace(0, 1, classes)))


def _bars(axes: Axes, shown: Holdings, colours: Sequence[Any]) -> None:
    """Segments by domain, then by class, from left to right."""
    start = np.zeros(len(shown.clients))
    for d in range(len(shown.domains)):
        hatch = HATCHES[d % len(HATCHES)] if shown.mixed else ""
        for k, colour in enumerate(colours):
            wide = shown.counts[:, d, k]
            some = np.flatnonzero(wide)
            axes.barh(
                some, wide[some], 0.8, start[some], color=colour, hatch=hatch, edgecolor="white",
                linewidth=0.3,
            )  # fmt: skip
            start += wide


def _class_legend(figure: Figure, axes: Axes, shown: Holdings, colours: Sequence[Any]) -> None:
    """Named patches above the bars, or a colour bar if there are too many classes to name."""
    if len(shown.classes) > NAMED:
        scale = Normalize(-0.5, len(shown.classes) - 0.5)
        bar = ScalarMappable(scale, ListedColormap(colours))
        figure.colorbar(bar, ax=axes, location="top", label="class", aspect=60, pad=0.02)
        return
    patches = [Patch(color=c, label=name) for c, name in zip(colours, shown.classes, strict=True)]
    figure.legend(
        handles=patches, loc="outside upper center", ncols=min(10, len(patches)), frameon=False,
        handlelength=1, columnspacing=1, fontsize="small",
    )  # fmt: skip


def _domain_legend(axes: Axes, shown: Holdings) -> None:
    """What the hatches mean."""
    patches = [
        Patch(facecolor="0.6", edgecolor="white", hatch=HATCHES[d % len(HATCHES)], label=name)
        for d, name in enumerate(shown.domains)
    ]
    axes.legend(
        handles=patches, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
        handlelength=2.5, handleheight=1.5,
    )  # fmt: skip


def _domain_groups(axes: Axes, shown: Holdings) -> None:
    """Name each group of clients of one domain on the right, with a line between groups."""
    home = (shown.counts.sum(2) > 0).argmax(1)  # (clients,)
    starts = np.flatnonzero(np.diff(home, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(home)], strict=True):
        axes.annotate(
            shown.domains[home[start]], (1.01, (start + end - 1) / 2), va="center",
            xycoords=("axes fraction", "data"), annotation_clip=False,
        )  # fmt: skip
        if start:
            axes.axhline(start - 0.5, color="0.7", linewidth=0.8)
