"""The picture of a sweep: validation AVG over each axis, with error bars over seeds.

``report.sweeps`` imports it when a figure is asked for, since it needs matplotlib. Test numbers are
drawn nowhere; that of the chosen setting is in the title.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.report.figures import Drawing, style, wrapped
from fedshift.report.looks import look
from fedshift.report.sweeps import Sweep, Trial, numbers

WIDE = 5.0  # an axis whose largest number is so many times its smallest is logarithmic
Curve = tuple[str, list[Trial]]


def draw(sweep: Sweep) -> Figure:
    """One panel per axis; of a grid of two axes one panel, with a line per value of the second."""
    keys, trials = sweep.keys or ["setting"], [t for t in sweep.trials if t.runs]
    lines = len(keys) == 2 and sweep.how == "grid"
    shown = keys[:1] if lines else keys
    with style():
        figure = Drawing((max(4.8, 3.4 * len(shown)), 3.8), dpi=150, layout="constrained")
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, key in zip(panels, shown, strict=True):
            ticks = list(dict.fromkeys(_value(trial, key) for trial in trials))
            curves = _by_value(trials, keys[1]) if lines else [("", trials)]
            for i, (label, own) in enumerate(curves):
                _curve(axes, sweep, key, (label, own), i, ticks)
            _ticks(axes, key, ticks)
            if lines:
                axes.legend(title=keys[1], frameon=False)
        _limit(panels[0], [t.validation(sweep.protocol).mean for t in trials])
        panels[0].set_ylabel(f"validation, AVG ({sweep.protocol})")
        figure.suptitle(wrapped(_title(sweep), 26 * len(shown) + 40), fontsize=9)
    return figure


def _title(sweep: Sweep) -> str:
    n = len(sweep.best.runs)
    bars = f"bars: 95 % interval over {n} seeds" if n > 1 else "1 seed"
    chosen = f"chosen (star): {sweep.best.label}, test {sweep.test.shown}"
    return f"{sweep.title}; {bars}; {chosen}"


def _value(trial: Trial, key: str) -> str:
    return dict(trial.values).get(key, "default")


def _by_value(trials: Sequence[Trial], key: str) -> list[Curve]:
    values = dict.fromkeys(_value(trial, key) for trial in trials)
    return [(value, [t for t in trials if _value(t, key) == value]) for value in values]


def _curve(
    axes: Axes, sweep: Sweep, key: str, curve: Curve, index: int, ticks: Sequence[str]
) -> None:
    """Points with error bars, joined where each value of the axis has one; the chosen is a star."""
    label, trials = curve
    places = _places(ticks)
    cells = [trial.validation(sweep.protocol) for trial in trials]
    x = [places[_value(trial, key)] for trial in trials]
    order = sorted(range(len(x)), key=lambda i: x[i])
    colour = look(index).colour
    joined = sweep.how == "grid" and len(set(x)) == len(x)
    errors = [0.0 if math.isnan(cell.interval) else cell.interval for cell in cells]
    axes.errorbar(
        [x[i] for i in order],
        [cells[i].mean for i in order],
        yerr=[errors[i] for i in order],
        color=colour,
        marker=look(index).marker,
        linestyle="-" if joined else "none",
        linewidth=1.5,
        markersize=4,
        capsize=2.5,
        label=label or None,
    )
    for i, trial in enumerate(trials):
        if trial is sweep.best:
            axes.plot(x[i], cells[i].mean, marker="*", markersize=13, color=colour, zorder=4)


def _places(ticks: Sequence[str]) -> dict[str, float]:
    found = numbers(ticks)
    return dict(
        zip(ticks, found if found is not None else map(float, range(len(ticks))), strict=True)
    )


def _ticks(axes: Axes, key: str, ticks: Sequence[str]) -> None:
    found = numbers(ticks)
    axes.set_xlabel(key)
    if found is None:
        axes.set_xticks(range(len(ticks)), ticks)
    elif min(found) > 0 and max(found) > WIDE * min(found):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")


def _limit(axes: Axes, means: Sequence[float]) -> None:
    """Keep the scale where values can be: bars of two seeds may be longer than a hundred."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -2.0) if min(means) >= 0 else low, min(high, 102.0))
