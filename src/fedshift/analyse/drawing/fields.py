"""Drawings of planes and grids: points, matrices, images, and the critical-difference diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fedshift.analyse.drawing.charts import (
    COLOURS,
    MARKERS,
    Chart,
    panels_of,
    put_legend,
    put_words,
)
from fedshift.report.figures import Drawing, style, wrapped

CLASSES = ("tab10", "tab20")


@dataclass(frozen=True)
class Cloud:
    """Points in the plane with the class (a colour) and the domain (a marker) of each."""

    xy: NDArray[Any]  # (N, 2)
    colour: Sequence[int]
    marker: Sequence[int]


def clouds(
    panels: Mapping[str, Cloud], colours: Sequence[str], markers: Sequence[str], chart: Chart
) -> Figure:
    """Scatter plots side by side; classes are colours and domains markers in all of them."""
    shades = class_colours(len(colours))
    with style():
        figure, all_axes = panels_of(len(panels), width=2.9, height=2.9)
        for axes, (name, cloud) in zip(all_axes, panels.items(), strict=True):
            _scatter(axes, cloud, shades, len(markers))
            axes.set_title(wrapped(name, 30), fontsize=8.5, loc="left")
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
        plain = {"linestyle": "", "color": "#555555"}
        names: dict[str, dict[str, Any]] = {}
        if len(markers) > 1:
            names |= {m: plain | {"marker": MARKERS[i]} for i, m in enumerate(markers)}
        if len(colours) <= 20:
            dot = {"linestyle": "", "marker": "o"}
            names |= {c: dot | {"color": shades[i]} for i, c in enumerate(colours)}
        put_legend(figure, names)
        figure.set_figheight(max(figure.get_figheight(), 0.19 * len(names) + 0.7))
        put_words(figure, chart, 40 + 25 * min(4, len(panels)))
    return figure


def _scatter(axes: Axes, cloud: Cloud, shades: Sequence[Any], kinds: int) -> None:
    colour, marker = np.asarray(cloud.colour), np.asarray(cloud.marker)
    for m in range(kinds):
        own = marker == m
        axes.scatter(
            cloud.xy[own, 0], cloud.xy[own, 1], s=11, marker=MARKERS[m % len(MARKERS)],
            c=[shades[k] for k in colour[own]], alpha=0.75, linewidths=0,
        )  # fmt: skip


def class_colours(classes: int) -> list[Any]:
    """One colour per class: distinct ones up to twenty, a continuous scale beyond."""
    if classes <= 20:
        return list(colormaps[CLASSES[classes > 10]](np.arange(classes)))
    return list(colormaps["turbo"](np.linspace(0, 1, classes)))


def matrices(
    panels: Mapping[str, ArrayLike], rows: Sequence[str], columns: Sequence[str], chart: Chart
) -> Figure:
    """Matrices with their numbers, side by side; an axis has names, a cell its value."""
    with style(axes_grid="False"):
        side = max(2.6, 0.62 * max(len(rows), len(columns)) + 1.2)
        figure, all_axes = panels_of(len(panels), width=side, height=side - 0.3, most=3)
        for axes, (name, values) in zip(all_axes, panels.items(), strict=True):
            put_matrix(axes, np.asarray(values, dtype=float), rows, columns)
            axes.set_title(wrapped(name, 34), fontsize=8.5, loc="left")
            axes.set(xlabel=chart.x, ylabel=chart.y)
        put_words(figure, chart, 34 + 28 * min(3, len(panels)))
    return figure


def put_matrix(
    axes: Axes,
    values: NDArray[Any],
    rows: Sequence[str],
    columns: Sequence[str],
    span: tuple[float, float] | None = None,
) -> None:
    """Draw a matrix with its numbers; what is no number stays empty.

    ``span``: the values of the lightest and the darkest cell; by default those that occur.
    """
    shown = np.ma.masked_invalid(values)
    low, high = span or (None, None)
    axes.imshow(shown, cmap="Blues", aspect="equal", vmin=low, vmax=high)
    axes.set_xticks(range(len(columns)), list(columns), rotation=40, ha="right")
    axes.set_yticks(range(len(rows)), list(rows))
    finite = values[np.isfinite(values)]
    middle = sum(span or (finite.min(), finite.max())) / 2 if finite.size else inf
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = "white" if value > middle else "black"
            text = f"{value:.0f}" if abs(value) >= 10 else f"{value:.2f}".replace("-0.00", "0.00")
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=ink)


def critical_difference(
    ranks: Mapping[str, float], critical: float, groups: Sequence[tuple[str, str]], chart: Chart
) -> Figure:
    """Demsar's diagram: methods on an axis of mean ranks, a bar over those not told apart."""
    names = list(ranks)
    rows = ceil(len(names) / 2)
    with style(axes_grid="False"):
        height = 1.3 + 0.16 * len(groups) + 0.22 * rows
        figure = Drawing((6.6, height), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        low, high = 1.0, float(len(names))
        margin = 0.42 * (high - low)
        axes.set(xlim=(low - margin, high + margin), ylim=(-rows - 0.6, 1.0 + 0.7 * len(groups)))
        axes.plot([low, high], [0, 0], color="black", linewidth=1)
        for tick in range(1, len(names) + 1):
            axes.plot([tick, tick], [0, 0.18], color="black", linewidth=1)
            axes.text(tick, 0.28, str(tick), ha="center", va="bottom", fontsize=7.5)
        for i, name in enumerate(names):
            _ranked(axes, name, ranks[name], place=(i, len(names)), edges=(low, high))
        for i, (first, last) in enumerate(groups):
            y = 1.1 + 0.6 * i
            axes.plot([ranks[first], ranks[last]], [y, y], color="#d55e00", linewidth=3)
        axes.set_axis_off()
        note = f"{chart.note}; bars join methods not told apart, critical difference {critical:.2f}"
        put_words(figure, Chart(chart.title, note), 76)
    return figure


def _ranked(
    axes: Axes, name: str, value: float, *, place: tuple[int, int], edges: tuple[float, float]
) -> None:
    """A method's name beside the axis, joined to its rank: the better half on the left."""
    i, count = place
    left = i < ceil(count / 2)
    y = -0.7 - (i if left else count - 1 - i)
    gap = 0.04 * (edges[1] - edges[0])
    x = edges[0] - gap if left else edges[1] + gap
    axes.plot([value, value, x], [0, y, y], color="#777777", linewidth=0.8)
    shown = f"{wrapped(name, 26)} {value:.2f}"
    axes.text(x, y, f"{shown} " if left else f" {shown}", ha="right" if left else "left",
              va="center", fontsize=7.5)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """An image with a heat map over it, and a line above it."""

    image: NDArray[Any]  # (H, W, 3) or (H, W), from 0 to 1
    heat: NDArray[Any] | None  # (H, W), from 0 to 1; None: the image alone
    title: str = ""


def images(
    rows: Mapping[str, Sequence[Picture | None]], columns: Sequence[str], chart: Chart
) -> Figure:
    """Images in a grid, a row per name and a column per domain; None leaves a place empty."""
    with style(axes_grid="False"):
        size = (1.25 * len(columns) + 1.2, 1.35 * len(rows) + 0.8)
        figure = Drawing((max(4.2, size[0]), size[1]), dpi=150, layout="constrained")
        grid = figure.subplots(len(rows), len(columns), squeeze=False)
        for i, (name, pictures) in enumerate(rows.items()):
            for j, picture in enumerate(pictures):
                axes = grid[i, j]
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
                if picture is None:
                    continue
                axes.imshow(picture.image, cmap="gray", vmin=0, vmax=1)
                if picture.heat is not None:
                    axes.imshow(picture.heat, cmap="jet", alpha=0.5, vmin=0, vmax=1)
                above = f"{columns[j]}\n" if i == 0 else ""
                axes.set_title(f"{above}{picture.title}", fontsize=7)
            grid[i, 0].set_ylabel(
                wrapped(name, 14), rotation=0, ha="right", va="center", fontsize=7.5
            )
        put_words(figure, chart, 24 + 12 * len(columns))
    return figure


def clouds_and_bars(
    rows: Mapping[str, tuple[Cloud, Mapping[str, Sequence[float]]]],
    names: tuple[Sequence[str], Sequence[str]],
    chart: Chart,
) -> Figure:
    """Per row a scatter plot on the left and grouped bars on the right.

    ``names`` are those of the colours, which are also the bars' groups, and those of the markers.
    """
    colours, markers = names
    shades = class_colours(len(colours))
    with style():
        figure = Drawing((7.4, 2.6 * len(rows) + 0.8), dpi=150, layout="constrained")
        grid = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(1, 1.25))
        for (left, right), (name, (cloud, shares)) in zip(grid, rows.items(), strict=True):
            _scatter(left, cloud, shades, len(markers))
            left.set(xticks=[], yticks=[])
            left.set_title(wrapped(name, 34), fontsize=8.5, loc="left")
            left.grid(visible=False)
            for i, values in enumerate(shares.values()):
                place = np.arange(len(values)) + 0.8 * ((i + 0.5) / len(shares) - 0.5)
                right.bar(place, values, 0.8 / len(shares), color=COLOURS[i])
            right.set_xticks(range(len(colours)), list(colours), fontsize=7)
            right.set(xlabel=chart.x, ylabel=chart.y)
        plain = {"linestyle": "", "color": "#555555"}
        kinds = {m: plain | {"marker": MARKERS[i]} for i, m in enumerate(markers)}
        labels = next(iter(rows.values()))[1]
        box = {"linestyle": "", "marker": "s"}
        kinds |= {k: box | {"color": COLOURS[i]} for i, k in enumerate(labels)}
        put_legend(figure, kinds)
        put_words(figure, chart, 90)
    return figure
