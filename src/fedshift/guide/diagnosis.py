"""What ``fedshift doctor`` found, as data: for scripts, for the screen and for the picture.

``guide.doctor`` fills it, ``guide.findings`` puts it into sentences. Shares are from 0 to 1 and
accuracies in per cent; an ``error`` is half of a 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedshift.guide.machine import Cost, Machine
from fedshift.guide.shift import Departure, LabelShift, Told
from fedshift.report import optional

Pair = tuple[str, str]


@dataclass(frozen=True)
class SiteRows:
    """How many rows a site has, by split."""

    rows: int  # in all; more than the splits together if not all were read
    train: int
    val: int
    test: int


@dataclass(frozen=True)
class Labels:
    """How the labels are spread."""

    counts: Mapping[str, Mapping[str, float]]  # by site: rows of each class
    shifts: tuple[LabelShift, ...]
    clients: tuple[LabelShift, ...] = ()  # of a scenario's clients, where they are not the sites


@dataclass(frozen=True)
class Shift:
    """How the inputs of sites differ; a site that has too few rows for a number is not there."""

    looked_at: Mapping[str, int]  # samples by site
    unit: str  # what the quick models see, in words
    statistics: Mapping[str, Mapping[str, tuple[float, float]]]  # by site: mean and deviation
    differences: tuple[Departure, ...]
    told_apart: Told | None
    pairs: Mapping[Pair, Told]
    alike: tuple[tuple[str, ...], ...]
    crossed: Mapping[Pair, Told]  # accuracy, trained at the first and tested at the second
    missing: Mapping[str, Mapping[str, float]]  # of a table, by site: share of missing cells


@dataclass(frozen=True)
class Copies:
    """Equal and almost equal inputs, by place."""

    looked_at: int
    equal: Mapping[str, int]
    near: Mapping[str, int]
    pairs: tuple[Pair, ...]  # ids of some near-duplicates
    skipped: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """What is in the data of several sites, how they differ, and what a run takes here.

    ``findings`` are the plain sentences, ``problems`` those to look into first, ``cannot_see`` what
    such a look does not show.
    """

    name: str
    kind: str  # of inputs: images, texts, a table or vectors
    source: str  # dataset, scenario, run file or path
    objective: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    sites: Mapping[str, SiteRows]
    labels: Labels
    shift: Shift
    copies: Copies
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    machine: Machine
    cost: Cost | None
    refused: str = ""  # why a run would stop before its first round
    findings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    cannot_see: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """The sentences, one per line."""
        return "\n".join((*self.problems, *self.findings))

    def summary(self) -> dict[str, Any]:
        """All of it as plain JSON values; pairs are "a / b", what is no number is null."""
        told = asdict(self)
        for key in ("pairs", "crossed"):
            pairs: Mapping[Pair, Told] = getattr(self.shift, key)
            told["shift"][key] = {f"{a} / {b}": asdict(v) for (a, b), v in pairs.items()}
        plain: dict[str, Any] = _plain(told)
        return plain

    def figure(self) -> Any:
        """The picture, a matplotlib figure (extra ``report``)."""
        optional.figures()  # one line if matplotlib is missing
        from fedshift.guide.picture import picture  # noqa: PLC0415  imports matplotlib

        return picture(self)

    def plot(self, path: Path | str) -> Path:
        """Write the picture to a png, svg or pdf file."""
        saved: Path = optional.figures().save(self.figure(), Path(path))
        return saved


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
