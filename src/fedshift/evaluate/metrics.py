"""From scored counts to metrics: per client, per domain, and the four numbers of tables.

``evaluate.protocols`` makes them, results and reports read them. They are plain numbers: nothing
here may look at a model, a method or a scenario.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from fedshift.core.objective import CONFUSION


@dataclass(frozen=True)
class Count:
    """What scoring one model on one set of samples gave."""

    name: str  # of the client, or of the domain if the server scored it
    domain: str
    score: float  # the objective's main measure in per cent, such as accuracy
    count: float
    loss: float
    weight: float  # in ``all``: training samples of a client, or scored samples of a domain
    measures: Mapping[str, float] = field(default_factory=dict)  # those that are defined
    confusion: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, found: Mapping[str, float], main: str, name: str, domain: str, weight: float
    ) -> Self:
        """From the numbers that ``core.objective.score`` returns; NaN if nothing was scored."""
        cells = {k: v for k, v in found.items() if k.startswith(f"{CONFUSION}/")}
        return cls(
            name,
            domain,
            found.get(main, math.nan),
            found["count"],
            found["loss"],
            weight,
            {k: v for k, v in found.items() if k not in (*cells, "count", "loss")},
            {(int(i), int(j)): v for k, v in cells.items() for _, i, j in [k.split("/")]},
        )


@dataclass(frozen=True)
class Metrics:
    """Numbers under one protocol, on one split; the main measure is accuracy, or R2, in per cent.

    Of the main measure, ``avg`` is the mean over domains, ``std`` their sample standard deviation
    (ddof = 1), ``all`` the weighted mean over clients (or domains), ``worst`` the lowest client (or
    domain). ``measures`` holds every measure, averaged as ``avg`` is, and ``by_domain`` the same
    per domain; one that is defined nowhere is missing. ``confusion`` holds rows of (true class,
    predicted class, count) per domain.
    """

    avg: float
    std: float
    all: float
    worst: float
    loss: float
    domains: dict[str, float]
    clients: dict[str, float]
    measures: dict[str, float] = field(default_factory=dict)
    by_domain: dict[str, dict[str, float]] = field(default_factory=dict)
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)  # scored per domain, over its clients

    @classmethod
    def of(cls, counts: Sequence[Count]) -> Self:
        """Metrics from counts; the value of a domain is the mean over its clients."""
        names = dict.fromkeys(c.domain for c in counts)
        domains = {d: statistics.fmean(c.score for c in counts if c.domain == d) for d in names}
        weight = sum(c.weight for c in counts)
        by_domain = {d: _means([c.measures for c in counts if c.domain == d]) for d in names}
        return cls(
            avg=statistics.fmean(domains.values()),
            std=statistics.stdev(domains.values()) if len(domains) > 1 else 0.0,
            all=sum(c.score * c.weight for c in counts) / weight,
            worst=min(c.score for c in counts),
            loss=sum(c.loss for c in counts) / max(1.0, sum(c.count for c in counts)),
            domains=domains,
            clients={c.name: c.score for c in counts if c.name != c.domain},
            measures=_means(by_domain.values()),
            by_domain=by_domain,
            confusion={
                d: cells for d in names if (cells := _cells(c for c in counts if c.domain == d))
            },
            samples={d: round(sum(c.count for c in counts if c.domain == d)) for d in names},
        )

    @classmethod
    def mean(cls, rows: Sequence[Metrics]) -> Self:
        """The mean over several rounds of the same clients and domains.

        ``std`` and ``worst`` are those of the mean accuracies, so they do not contain the scatter
        of single rounds. Confusion matrices are left out: rounds are not samples.
        """
        domains = _means([row.domains for row in rows])
        clients = _means([row.clients for row in rows])
        by_domain = {d: _means([row.by_domain.get(d, {}) for row in rows]) for d in domains}
        return cls(
            avg=statistics.fmean(domains.values()),
            std=statistics.stdev(domains.values()) if len(domains) > 1 else 0.0,
            all=statistics.fmean(row.all for row in rows),
            worst=min((clients or domains).values()),
            loss=statistics.fmean(row.loss for row in rows),
            domains=domains,
            clients=clients,
            measures=_means([row.measures for row in rows]),
            by_domain={d: found for d, found in by_domain.items() if found},
            samples=rows[-1].samples,
        )

    def value(self, key: str) -> float:
        """A number by name: avg, std, all, worst, loss, a domain or a measure; NaN if unknown."""
        if key in self.domains:
            return self.domains[key]
        if key in ("avg", "std", "all", "worst", "loss"):
            return float(getattr(self, key))
        return self.measures.get(key, math.nan)

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values; measures stand beside ``avg``, by their names."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "measures"}
        return {k: v for k, v in own.items() if k not in OPTIONAL or v} | self.measures

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`; rows of earlier versions have no measures."""
        names = {f.name for f in fields(cls)}
        measures = {k: v for k, v in value.items() if k not in names}
        return cls(**{k: v for k, v in value.items() if k in names}, measures=measures)


OPTIONAL = ("by_domain", "confusion", "samples")


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Each measure averaged over the rows that have it."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {n: statistics.fmean(row[n] for row in rows if n in row) for n in names}


def _cells(counts: Iterable[Count]) -> list[list[int]]:
    """Confusion matrices added up, as rows of (true class, predicted class, count)."""
    total: Counter[tuple[int, int]] = Counter()
    for count in counts:
        total.update({cell: round(n) for cell, n in count.confusion.items()})
    return [[i, j, n] for (i, j), n in sorted(total.items())]


def rounds_to(threshold: float, history: Iterable[tuple[int, float]]) -> int | None:
    """First round whose accuracy reaches ``threshold``, None if none does.

    Examples:
        >>> rounds_to(80.0, [(1, 60.0), (2, 81.0), (3, 79.0)])
        2
    """
    return next((round_ for round_, value in history if value >= threshold), None)
