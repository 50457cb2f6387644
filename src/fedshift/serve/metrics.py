"""What the service counts, as Prometheus reads it (text format 0.0.4).

``service`` notes every request here. It holds counts and sums, never an input or an answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from threading import Lock

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class ServiceMetrics:
    """Requests by status, inputs, seconds, and the mean energy of the last inputs."""

    def __init__(self, window: int = 200) -> None:
        self._status: Counter[int] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds, self._inputs = 0.0, 0
        self._energies: deque[float] = deque(maxlen=window)
        self._lock = Lock()

    def note(self, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self._status[status] += 1
            self._buckets[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds

    def predicted(self, inputs: int, energies: list[float]) -> None:
        """So many inputs were predicted."""
        with self._lock:
            self._inputs += inputs
            self._energies.extend(energies)

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """All of it, with further ``gauges``: help and value by name."""
        with self._lock:
            total = sum(self._status.values())
            lines = _head("fedshift_requests_total", "counter", "Requests by HTTP status.")
            lines += [f'fedshift_requests_total{{status="{k}"}} {n}'
                      for k, n in sorted(self._status.items())]  # fmt: skip
            lines += _head("fedshift_inputs_total", "counter", "Rows and images predicted.")
            lines.append(f"fedshift_inputs_total {self._inputs}")
            name = "fedshift_request_seconds"
            lines += _head(name, "histogram", "Seconds from request to answer.")
            below = 0
            for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
                below += count
                lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
            lines += [f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]
            if self._energies:
                mean = sum(self._energies) / len(self._energies)
                gauges = gauges | {"fedshift_energy_mean": ("Mean energy of late.", mean)}
        for name, (told, value) in gauges.items():
            lines += [*_head(name, "gauge", told), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, told: str) -> list[str]:
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
