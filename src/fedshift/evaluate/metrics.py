"""From counts of correct predictions to metrics: per client, per domain, and the four in tables.

``evaluate.protocols`` makes them, results and reports read them. They are plain numbers: nothing
here may look at a model, a method or a scenario.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Count:
    """Correct predictions and summed loss of one model on one set of samples."""

    name: str  # of the client, or of the domain if the server scored it
    domain: str
    right: float
    count: float
    loss: float
    weight: float  # in ``all``: training samples of a client, or scored samples of a domain

    @property
    def accuracy(self) -> float:
        """Accuracy in per cent."""
        return 100.0 * self.right / self.count


@dataclass(frozen=True)
class Metrics:
    """Accuracies in per cent under one protocol, on one split.

    ``avg`` is the mean over domains, ``std`` their sample standard deviation (ddof = 1), ``all``
    the weighted mean over clients (or domains), ``worst`` the lowest client (or domain).
    """

    avg: float
    std: float
    all: float
    worst: float
    loss: float
    domains: dict[str, float]
    clients: dict[str, float]

    @classmethod
    def of(cls, counts: Sequence[Count]) -> Self:
        """Metrics from counts; the accuracy of a domain is the mean over its clients."""
        domains = {
            d: statistics.fmean(c.accuracy for c in counts if c.domain == d)
            for d in dict.fromkeys(c.domain for c in counts)
        }
        weight = sum(c.weight for c in counts)
        return cls(
            avg=statistics.fmean(domains.values()),
            std=statistics.stdev(domains.values()) if len(domains) > 1 else 0.0,
            all=sum(c.accuracy * c.weight for c in counts) / weight,
            worst=min(c.accuracy for c in counts),
            loss=sum(c.loss for c in counts) / sum(c.count for c in counts),
            domains=domains,
            clients={c.name: c.accuracy for c in counts if c.name != c.domain},
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`."""
        return cls(**value)


def rounds_to(threshold: float, history: Iterable[tuple[int, float]]) -> int | None:
    """First round whose accuracy reaches ``threshold``, None if none does.

    Examples:
        >>> rounds_to(80.0, [(1, 60.0), (2, 81.0), (3, 79.0)])
        2
    """
    return next((round_ for round_, value in history if value >= threshold), None)
