"""Input drift: how far the inputs of late are from a reference, without keeping any of them.

``service`` feeds it every batch. Each input is summed up as a short vector: of an image the mean
and the deviation of each channel, of a prepared row its cells. The distance is the root mean
square, over the entries of that vector, of the shift of the mean in standard deviations of the
reference; 0.5 is half a deviation. The reference is that of given data, of a table's training rows
(whose numbers were standardised, so that mean and variance are 0 and 1), or of the first inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LEAST = 30  # inputs before anything is said
SMALL = 1e-6  # variance below which an entry of the summary counts as constant


def summaries(x: Array) -> Array:
    """(N, F): of images (N, C, H, W) uint8 channel means and deviations in [0, 1], else the rows.

    >>> summaries(np.full((1, 1, 2, 2), 255, np.uint8)).tolist()
    [[1.0, 0.0]]
    """
    if x.ndim != 4:
        return x.astype(np.float64)
    pixels = x.reshape(*x.shape[:2], -1) / 255  # (N, C, H * W)
    return np.concatenate([pixels.mean(2), pixels.std(2)], axis=1)


@dataclass(frozen=True)
class DriftReference:
    """Mean and variance (F,) of the summaries that today's inputs are compared with."""

    mean: Array
    variance: Array

    @classmethod
    def of(cls, found: Array) -> Self:
        """Of summaries (N, F)."""
        return cls(found.mean(0), found.var(0))

    def distance(self, mean: Array) -> float:
        """sqrt(mean_k (m_k - r_k)^2 / v_k), over entries that vary in the reference."""
        varies = self.variance > SMALL
        if not varies.any():
            return 0.0
        shift = (mean - self.mean)[varies] ** 2 / self.variance[varies]
        return float(np.sqrt(shift.mean()))


def of_training(about: Mapping[str, Any]) -> DriftReference | None:
    """That of a table's training rows, if their numbers were standardised over all sites."""
    plans = about.get("plans", {}).get("all", [])
    mean, variance = [], []
    for plan in plans:
        width = _width(plan)
        scaled = plan["kind"] == "number" and (plan["mean"], plan["scale"]) != (0.0, 1.0)
        mean += [0.0] * width
        variance += [1.0 if scaled else 0.0] + [0.0] * (width - 1)
    return DriftReference(np.array(mean), np.array(variance)) if any(variance) else None


def _width(plan: Mapping[str, Any]) -> int:
    if plan["kind"] == "number":
        return 1 + bool(plan["indicator"])
    if plan["kind"] == "text":
        return int(plan["size"])
    return (int(plan["size"]) or len(plan["categories"])) + bool(plan["indicator"])


class DriftMonitor:
    """The mean of the last inputs' summaries against a reference; an alarm above a threshold."""

    def __init__(
        self, reference: DriftReference | None = None, *, window: int = 200, threshold: float = 0.5
    ) -> None:
        self.reference, self.window, self.threshold = reference, window, threshold
        self._first: list[Array] = []  # summaries, never inputs, until there is a reference
        self._last: deque[Array] = deque(maxlen=window)
        self._lock = Lock()

    def add(self, x: Array) -> None:
        """Take inputs into account."""
        with self._lock:
            for one in summaries(x):
                if self.reference is None:
                    self._first.append(one)
                    if len(self._first) == self.window:
                        self.reference, self._first = DriftReference.of(np.stack(self._first)), []
                else:
                    self._last.append(one)

    @property
    def distance(self) -> float | None:
        """Of the last inputs; None while there are too few."""
        with self._lock:
            if self.reference is None or len(self._last) < min(LEAST, self.window):
                return None
            return self.reference.distance(np.mean(self._last, axis=0))

    @property
    def alarm(self) -> bool:
        """Whether the distance is above the threshold."""
        found = self.distance
        return found is not None and found > self.threshold
