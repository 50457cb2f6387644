"""The picture of a diagnosis: who does how well where, who has which labels, what differs.

Reached through :meth:`Diagnosis.figure`, since matplotlib is an extra. It shows numbers of sites,
never samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedshift.analyse.drawing.charts import Chart, put_words
from fedshift.analyse.drawing.fields import class_colours, put_matrix
from fedshift.guide.diagnosis import Diagnosis
from fedshift.report.figures import Drawing, style, wrapped

CLASSES = 12  # that get a colour and a name each; further ones are one
MEASURES = 5  # of the inputs, those that differ most
WIDTH = 16  # characters of a name


def picture(found: Diagnosis) -> Figure:
    """Matrix of accuracies, labels by site, and the measures in which sites differ most."""
    sites = [*found.shift.looked_at]
    side = max(2.6, 0.42 * len(sites) + 1.4)
    with style(axes_grid="False"):
        figure = Drawing((11.2, side + 2.9), dpi=150, layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=(side + 0.4, 2.5))
        top, below = parts
        first, second, third = top.subplots(1, 3, width_ratios=(1.0, 1.0, 1.15))
        _crossed(first, found, sites)
        _apart(second, found, sites)
        _labels(third, found)
        _measures(below, found, sites)
        note = f"{sum(found.shift.looked_at.values()):,} samples were looked at; {found.shift.unit}"
        put_words(figure, Chart(f"{found.name}: how the sites differ", note), 120)
    return figure


def _short(names: Sequence[str]) -> list[str]:
    return [n if len(n) <= WIDTH else f"{n[: WIDTH - 1]}…" for n in names]


def _matrix(found: dict[tuple[str, str], float], sites: Sequence[str]) -> NDArray[Any]:
    return np.array([[found.get((a, b), np.nan) for b in sites] for a in sites])


def _crossed(axes: Axes, found: Diagnosis, sites: Sequence[str]) -> None:
    values = {pair: told.value for pair, told in found.shift.crossed.items()}
    what = "100 R²" if found.objective == "regression" else "accuracy in %"
    put_matrix(axes, _matrix(values, sites), _short(sites), _short(sites), (0.0, 100.0))
    axes.set_title(f"linear model: {what}", fontsize=8.5, loc="left")
    axes.set(xlabel="tested at", ylabel="trained at")


def _apart(axes: Axes, found: Diagnosis, sites: Sequence[str]) -> None:
    values = {pair: told.value for pair, told in found.shift.pairs.items()}
    values |= {(b, a): value for (a, b), value in values.items()}
    put_matrix(axes, _matrix(values, sites), _short(sites), _short(sites), (50.0, 100.0))
    axes.set_title("two sites told apart, % (50: alike)", fontsize=8.5, loc="left")


def _labels(axes: Axes, found: Diagnosis) -> None:
    """Stacked shares of the classes, a bar per site; of numbers to predict their means."""
    counts = {name: found.labels.counts[name] for name in found.shift.looked_at}
    names = _short([*counts])
    if found.objective == "regression":
        means = [one.here for one in found.labels.shifts if one.site in counts]
        axes.barh(names, means, color="#0072b2")
        axes.set_title(f"{found.classes[0]}, mean by site", fontsize=8.5, loc="left")
        axes.invert_yaxis()
        return
    table = np.array([[*own.values()] for own in counts.values()])  # (n, K)
    shown = [*found.classes[:CLASSES]]
    if table.shape[1] > CLASSES:
        rest = table[:, CLASSES:].sum(1, keepdims=True)
        table, shown = np.concatenate([table[:, :CLASSES], rest], 1), [*shown, "others"]
    shares = 100 * table / np.maximum(table.sum(1, keepdims=True), 1)
    left = np.zeros(len(counts))
    for colour, kind, column in zip(class_colours(len(shown)), shown, shares.T, strict=True):
        axes.barh(names, column, left=left, color=colour, label=wrapped(kind, WIDTH))
        left += column
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="% of the labels")
    axes.set_title("labels by site", fontsize=8.5, loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=6.5)


def _measures(figure: Any, found: Diagnosis, sites: Sequence[str]) -> None:
    """Mean and deviation of what differs most, one panel each."""
    first = found.shift.statistics[sites[0]]
    most = sorted(found.shift.differences, key=lambda one: -abs(one.deviations))
    names = list(dict.fromkeys([*(one.what for one in most), *first]))[:MEASURES]
    if not names:
        return
    panels = np.atleast_1d(figure.subplots(1, len(names)))
    for axes, name in zip(panels, names, strict=True):
        told = [found.shift.statistics[site][name] for site in sites]
        mean, spread = (np.array(part) for part in zip(*told, strict=True))
        axes.errorbar(mean, _short(sites), xerr=spread, fmt="o", markersize=4, color="#0072b2",
                      ecolor="#9bbcd6", capsize=2)  # fmt: skip
        axes.invert_yaxis()
        axes.margins(y=0.15)
        axes.set_title(wrapped(name, 26), fontsize=8.5, loc="left")
        axes.locator_params(axis="x", nbins=4)
        if axes is not panels[0]:
            axes.set_yticklabels([])
    panels[0].set_xlabel("mean and one deviation")
