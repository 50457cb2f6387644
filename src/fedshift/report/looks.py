"""What tells methods apart in figures: colour, mark and dash, by a method's place in a comparison.

``report.figures`` draws with it, and ``page/charts.js`` has the same rule for pages (a test holds
the two together). Colour and dash together repeat after forty methods, colour and mark after
seventy; every line has its method's name beside it as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Ten colours that differ in lightness as well as in hue; the first seven follow Okabe and Ito's
# palette for the colour-blind. page.css has them for light pages, and lighter ones for dark pages.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#b3508f",
    "#a87900",
    "#3aa0dd",
    "#5c6670",
    "#6a3fbf",
    "#c1272d",
    "#6b8e23",
)
MARKS = {  # as the page's library calls them: as matplotlib does
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "P",
    "star": "*",
    "wye": "X",
}
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (7, 2, 1.5, 2)))


@dataclass(frozen=True)
class Look:
    """How a method is drawn, in matplotlib's words."""

    colour: str
    marker: str
    dash: Any


def look(index: int) -> Look:
    """The look of the method at a place.

    >>> look(0).colour == look(10).colour, look(0).dash == look(10).dash
    (True, False)
    """
    markers = tuple(MARKS.values())
    return Look(
        COLOURS[index % len(COLOURS)],
        markers[index % len(markers)],
        DASHES[index // len(COLOURS) % len(DASHES)],
    )
