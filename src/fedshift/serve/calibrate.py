"""Temperature scaling: one number that makes a model as confident as it is right.

``export`` and ``fedshift card`` ask for it. The number is fitted on validation samples, never on
test samples, and what it does is measured on the test samples. Logits are divided by it, so the
class with the highest probability stays the same. Guo et al., ICML 2017, section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional

from fedshift.base.errors import ConfigError, RunError
from fedshift.core.measures import calibration_error
from fedshift.core.objective import Classification
from fedshift.experiment.models import load_model
from fedshift.report.results import RunResult
from fedshift.serve.graph import Graph
from fedshift.serve.parity import Asked, tested_inputs, validation_inputs

KINDS = ("temperature",)
ENOUGH = 100  # validation samples; with fewer, the number may be far off
WIDEST = 10.0  # a temperature is between 1 / WIDEST and WIDEST: few samples may all be right


@dataclass(frozen=True)
class Gap:
    """How far confidence is from accuracy, on some samples, before and after."""

    samples: int
    ece: tuple[float, float]  # in per cent
    nll: tuple[float, float]


@dataclass(frozen=True)
class Temperature:
    """By what logits are divided, what it was fitted on, and what it does on test samples."""

    value: float
    fitted: int  # validation samples
    tests: Mapping[str, Gap]  # by site or domain; empty if there are no test samples

    @property
    def unsure(self) -> bool:
        """Whether it was fitted on too few samples to be relied on."""
        return self.fitted < ENOUGH

    def __str__(self) -> str:
        told = f"temperature {self.value:.3f}, fitted on {self.fitted} validation samples"
        if self.unsure:
            told += f" (fewer than {ENOUGH}: it may be far off)"
        gaps = [f"{name} {g.ece[0]:.1f} -> {g.ece[1]:.1f}" for name, g in self.tests.items()]
        return f"{told}; ECE in per cent on test samples: {', '.join(gaps)}" if gaps else told

    def to_json(self) -> dict[str, Any]:
        """For a model card."""
        gaps = {
            name: {"samples": g.samples, "ece": list(g.ece), "nll": list(g.nll)}
            for name, g in self.tests.items()
        }
        told = {"value": self.value, "fitted": self.fitted, "unsure": self.unsure}
        return told | {"tests": gaps}


def require_kind(name: str | None) -> None:
    """Raise if there is no such calibration."""
    if name is not None and name not in KINDS:
        raise ConfigError(f"calibrate={name!r} is not known; it takes one of {', '.join(KINDS)}")


def temperature_of_run(run: RunResult | Path | str, site: str | None = None) -> Temperature:
    """The temperature of a run's model, whose data must still be there."""
    graph = Graph(load_model(run, site))
    folder = run.path if isinstance(run, RunResult) else Path(run)
    assert folder is not None  # or there would be no model
    return temperature_of(graph, tested_inputs(graph, folder))


def temperature_of(graph: Graph, tested: Sequence[Asked]) -> Temperature:
    """Fit on the validation samples of the model's sites, and measure on its test samples."""
    if not isinstance(graph.task, Classification):
        raise ConfigError(
            f"a temperature is of one class out of several; this run's task is {graph.task.name}"
        )
    held = validation_inputs(graph)
    if not held:
        raise RunError(
            "no validation samples to fit a temperature on: the run's data have been removed, or "
            "have no validation rows; calibrate where the data are"
        )
    y = torch.cat([one.y for one in held if one.y is not None])
    value = fitted_temperature(torch.cat([one.out for one in held]), y)
    gaps = {one.name: gap(one, value) for one in tested if one.y is not None}
    return Temperature(value, len(y), gaps)


def fitted_temperature(logits: Tensor, y: Tensor) -> float:
    """The t > 0 with the lowest mean negative log-likelihood of softmax(logits / t).

    It is convex in 1 / t, so it has one lowest point, and so has it in log t.

    >>> z = torch.tensor([[2.0, 0.0]] * 4)  # confident, and right three times out of four
    >>> t = fitted_temperature(z, torch.tensor([0, 0, 0, 1]))
    >>> round(float((z / t).softmax(1)[0, 0]), 4)
    0.75
    """
    z = logits.double()

    def loss(log_t: float) -> float:
        return float(functional.cross_entropy(z / math.exp(log_t), y.long()))

    edge = math.log(WIDEST)
    found = minimize_scalar(loss, bounds=(-edge, edge), method="bounded", options={"xatol": 1e-6})
    return math.exp(float(found.x))


def gap(asked: Asked, temperature: float) -> Gap:
    """Calibration error and negative log-likelihood of test samples, before and after."""
    assert asked.y is not None
    before, after = (_gaps(asked.out.double() / t, asked.y.long()) for t in (1.0, temperature))
    return Gap(len(asked.y), (before[0], after[0]), (before[1], after[1]))


def _gaps(z: Tensor, y: Tensor) -> tuple[float, float]:
    confidence, chosen = z.softmax(1).max(1)
    error = 100 * calibration_error(confidence, chosen == y)
    return error, float(functional.cross_entropy(z, y))
