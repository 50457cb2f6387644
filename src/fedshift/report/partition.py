"""Who holds what, as a table and as a picture: clients x domains x classes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table as RichTable

from fedshift.base.errors import ConfigError
from fedshift.data.dealing.shares import Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from fedshift.data.dealing.holdings import Table

COLUMNS = 12  # classes that a table shows one by one


NAMED = 20  # classes that a legend names one by one


HATCHES = ("", "///", "...", "xxx", "---", "ooo", "\\\\\\", "+++")


def render_table(shown: Table) -> RichTable:
    """One line per client and domain; beyond twelve classes their number and the largest one."""
    out = RichTable("client", "domain", title="Training samples", title_justify="left")
    few = len(shown.classes) <= COLUMNS
    for column in (*(shown.classes if few else ("classes", "largest class")), "samples"):
        out.add_column(column, justify="right")
    for client, domain, counts in _lines(shown):
        largest = f"{shown.classes[counts.argmax()]} ({counts.max() / counts.sum():.0%})"
        cells = (
            [str(n) if n else "-" for n in counts] if few else [str((counts > 0).sum()), largest]
        )
        out.add_row(client, domain, *cells, str(counts.sum()))
    return out


def _lines(shown: Table) -> Iterable[tuple[str, str, Ints]]:
    """Client (named once), domain and class counts (K,) of every line."""
    for client, by_domain in zip(shown.clients, shown.counts, strict=True):
        label = client
        for domain, counts in zip(shown.domains, by_domain, strict=True):
            if counts.any():
                yield label, domain, counts
                label = ""


def plot(shown: Table) -> Figure:
    """A bar per client, a colour per class; domains as groups, as hatches if clients mix them."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib is not installed, and figures need it; pip install 'fedshift[report]'"
        )
    from matplotlib.figure import Figure  # noqa: PLC0415 - only for figures

    n = len(shown.clients)
    figure = Figure(figsize=(8, 1.5 + 0.24 * n), layout="constrained")
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
    """One colour per class: told apart up to twenty, a scale beyond."""
    from matplotlib import colormaps  # noqa: PLC0415

    if classes <= NAMED:
        return list(colormaps["tab10" if classes <= 10 else "tab20"](np.arange(classes)))
    return list(colormaps["turbo"](np.linspace(0, 1, classes)))


def _bars(axes: Axes, shown: Table, colours: Sequence[Any]) -> None:
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


def _class_legend(figure: Figure, axes: Axes, shown: Table, colours: Sequence[Any]) -> None:
    """Named patches above the bars, or a colour bar if there are too many classes to name."""
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415
    from matplotlib.colors import ListedColormap, Normalize  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

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


def _domain_legend(axes: Axes, shown: Table) -> None:
    """What the hatches mean."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    patches = [
        Patch(facecolor="0.6", edgecolor="white", hatch=HATCHES[d % len(HATCHES)], label=name)
        for d, name in enumerate(shown.domains)
    ]
    axes.legend(
        handles=patches, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
        handlelength=2.5, handleheight=1.5,
    )  # fmt: skip


def _domain_groups(axes: Axes, shown: Table) -> None:
    """Name each run of clients of one domain on the right, and rule it off."""
    home = (shown.counts.sum(2) > 0).argmax(1)  # (clients,)
    starts = np.flatnonzero(np.diff(home, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(home)], strict=True):
        axes.annotate(
            shown.domains[home[start]], (1.01, (start + end - 1) / 2), va="center",
            xycoords=("axes fraction", "data"), annotation_clip=False,
        )  # fmt: skip
        if start:
            axes.axhline(start - 0.5, color="0.7", linewidth=0.8)
