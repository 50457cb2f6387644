"""Matplotlib charts that the kinds of analyses share: lines, error bars, radar, bars.

Kinds reach it through :func:`fedshift.analyse.pictures.draw`, since matplotlib is an extra. Methods
are told apart by colour, marker and dash together, so that twenty of them stay distinguishable in
print and for people who see no red. The look is that of ``report.figures``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedshift.report.figures import Drawing, style, wrapped

# Okabe and Ito's palette without yellow, and three darker ones that it has not.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#6a3d9a",
    "#8c510a", "#000000",
)  # fmt: skip
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "h", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the series number ``index``; no two of the first 110 are alike.

    >>> len({(v["color"], v["marker"]) for v in map(look, range(110))})
    110
    """
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


@dataclass(frozen=True)
class Line:
    """A line of a chart: a label, points, and if known how far they scatter."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    dots: Sequence[tuple[float, float]] = ()  # points to stress, such as selected rounds
    index: int | None = None  # of its look; its place among the lines, if there is none


@dataclass(frozen=True)
class Chart:
    """The words around a picture."""

    title: str
    note: str = ""
    x: str = ""
    y: str = ""
    scale: str = "linear"  # of the y axis
    across: str = "linear"  # of the x axis
    ticks: Sequence[str] = field(default_factory=tuple)  # words on the x axis, at 0, 1, ...


def panels_of(
    count: int, *, width: float, height: float, most: int = 4
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` axes in rows of at most ``most``; inches are of each."""
    columns = min(most, count)
    rows = ceil(count / columns)
    figure = Drawing((width * columns, height * rows + 0.7), dpi=150, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, list(axes[:count])


def put_words(figure: Figure, chart: Chart, width: int) -> None:
    """The title, and below it the note that says what the numbers are, left above everything."""
    text = wrapped(chart.title, width)
    note = wrapped(chart.note, round(width * 1.25))
    figure.suptitle(text, x=0.01, ha="left", weight="bold", fontsize=10)
    if note:
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, alpha=0.75)


def put_axes(axes: Axes, chart: Chart) -> None:
    """The words and scales of an axis, and the ticks that have names."""
    axes.set(xlabel=chart.x, ylabel=chart.y, yscale=chart.scale, xscale=chart.across)
    for axis, scale in ((axes.xaxis, chart.across), (axes.yaxis, chart.scale)):
        if scale == "log":  # matplotlib would write powers as formulas, and text is plain here
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
    if chart.x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.ticks:
        slanted = max(map(len, chart.ticks)) > 8 and len(chart.ticks) > 4
        axes.set_xticks(
            range(len(chart.ticks)),
            list(chart.ticks),
            rotation=40 if slanted else 0,
            ha="right" if slanted else "center",
        )


def put_legend(figure: Figure, names: Mapping[str, Mapping[str, Any]], title: str = "") -> None:
    """One entry per name, beside the panels; two columns if there are many."""
    handles = [Line2D([], [], label=wrapped(k, 26), markersize=5, **v) for k, v in names.items()]
    columns = 2 if len(handles) > 24 else 1
    figure.legend(
        handles=handles, loc="outside right upper", frameon=False, fontsize=7.5, ncols=columns,
        handlelength=3.2, title=title or None, alignment="left",
    )  # fmt: skip


def lines(panels: Mapping[str, Sequence[Line]], chart: Chart) -> Figure:
    """Line charts side by side, one per panel; a label has one look in all of them."""
    labels = list(dict.fromkeys(line.label for own in panels.values() for line in own))
    looks = {label: look(i) for i, label in enumerate(labels)}
    wide = 5.2 if len(panels) == 1 else 3.2
    with style():
        figure, all_axes = panels_of(len(panels), width=wide, height=3.4 if wide > 4 else 2.6)
        for axes, (name, own) in zip(all_axes, panels.items(), strict=True):
            for line in own:
                chosen = looks[line.label] if line.index is None else look(line.index)
                _line(axes, line, chosen)
            put_axes(axes, chart)
            if len(panels) > 1:
                axes.set_title(wrapped(name, 30), fontsize=8.5, loc="left")
        if len(labels) > 1 or len(panels) > 1:
            put_legend(figure, looks)
        height = 0.19 * len(labels) + 0.7
        if figure.get_figheight() < height:
            figure.set_figheight(height)
        put_words(figure, chart, 76 if len(panels) == 1 else 90)
    return figure


def _line(axes: Axes, line: Line, chosen: Mapping[str, Any]) -> None:
    some = max(1, len(line.x) // 12)  # a marker on every point would hide the dashes
    axes.plot(line.x, line.y, linewidth=1.5, markersize=4, markevery=some, **chosen)
    if line.spread is not None and np.isfinite(line.spread).any():
        low, high = np.subtract(line.y, line.spread), np.add(line.y, line.spread)
        axes.fill_between(line.x, low, high, color=chosen["color"], alpha=0.1, linewidth=0)
    if line.dots:
        x, y = zip(*line.dots, strict=True)
        axes.scatter(x, y, s=46, facecolors="none", edgecolors=chosen["color"], zorder=3)


def error_bars(panels: Mapping[str, tuple[Sequence[Line], Sequence[str]]], chart: Chart) -> Figure:
    """Points with error bars joined by lines, a panel per setting; words are ticks at 0, 1, ...

    Values that span more than a factor of twenty are on a logarithmic axis.
    """
    labels = dict.fromkeys(line.label for own, _ in panels.values() for line in own)
    looks = {label: look(i) for i, label in enumerate(labels)}
    with style():
        wide = 5.2 if len(panels) == 1 else 3.2
        figure, all_axes = panels_of(len(panels), width=wide, height=3.4 if wide > 4 else 2.6)
        for axes, (name, (found, ticks)) in zip(all_axes, panels.items(), strict=True):
            for line in found:
                own = looks[line.label]
                axes.errorbar(line.x, line.y, yerr=line.spread, capsize=3, markersize=5, **own)
            x = [v for line in found for v in line.x]
            far = not ticks and min(x) > 0 and max(x) / min(x) >= 20
            put_axes(axes, replace(chart, x=name, ticks=ticks, across="log" if far else "linear"))
        if len(labels) > 1:
            put_legend(figure, looks)
        put_words(figure, chart, 76 if len(panels) == 1 else 90)
    return figure


def radar(axes_names: Sequence[str], found: Mapping[str, Sequence[float]], chart: Chart) -> Figure:
    """One spoke per name; a closed line per series, values from 0 to 1 outwards."""
    angles = np.linspace(0, 2 * np.pi, len(axes_names), endpoint=False)
    low = min(min(values) for values in found.values())
    with style():
        figure = Drawing((5.8, 4.4), dpi=150, layout="constrained")
        axes = figure.add_subplot(projection="polar")
        for i, values in enumerate(found.values()):
            closed = [*values, values[0]]
            axes.plot([*angles, angles[0]], closed, linewidth=1.4, markersize=4, **look(i))
        axes.set_xticks(angles, [wrapped(name, 16) for name in axes_names])
        axes.set_ylim(max(0.0, low - 0.15), 1.02)
        axes.tick_params(axis="y", labelsize=6.5)
        put_legend(figure, {label: look(i) for i, label in enumerate(found)})
        put_words(figure, chart, 70)
    return figure


def bars(panels: Mapping[str, Mapping[str, Sequence[float]]], chart: Chart) -> Figure:
    """Grouped bars: per panel one group per tick, in it one bar per label."""
    labels = list(dict.fromkeys(label for own in panels.values() for label in own))
    with style():
        figure, all_axes = panels_of(
            len(panels), width=4.4 if len(panels) == 1 else 3.4, height=2.8
        )
        for axes, (name, own) in zip(all_axes, panels.items(), strict=True):
            for i, (label, values) in enumerate(own.items()):
                place = np.arange(len(values)) + 0.8 * ((i + 0.5) / len(own) - 0.5)
                axes.bar(place, values, 0.8 / len(own), color=COLOURS[labels.index(label) % 10])
            put_axes(axes, chart)
            if len(panels) > 1:
                axes.set_title(wrapped(name, 34), fontsize=8.5, loc="left")
        if len(labels) > 1:
            shade = {"linestyle": "", "marker": "s"}
            put_legend(
                figure, {k: shade | {"color": COLOURS[i % 10]} for i, k in enumerate(labels)}
            )
        put_words(figure, chart, 80)
    return figure


def reliability(
    found: Mapping[str, tuple[Sequence[float], Sequence[float]]], chart: Chart
) -> Figure:
    """Accuracy over confidence, one line per method, beside the diagonal of perfect calibration."""
    with style():
        figure, (axes,) = panels_of(1, width=5.8, height=3.4)
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, linestyle=":")
        for i, (confidence, accuracy) in enumerate(found.values()):
            axes.plot(confidence, accuracy, linewidth=1.4, markersize=4.5, **look(i))
        put_axes(axes, chart)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        put_legend(figure, {label: look(i) for i, label in enumerate(found)})
        put_words(figure, chart, 70)
    return figure
