"""How parameters are stepped: torch's optimisers, and plain SGD without what they add to a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

Precision = Literal["float32", "bfloat16"]


class Optimiser(Protocol):
    """What the loop and its callers use of an optimiser; torch's have it."""

    param_groups: list[dict[str, Any]]
    state: defaultdict[Any, Any]  # parameter -> name -> tensor

    def step(self) -> object:
        """Move the parameters along their gradients, in place."""
        ...


@dataclass(frozen=True)
class Optimisation:
    """How parameters are stepped: the scenario's choice, the same for every method."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    precision: Precision = "float32"

    def build(self, parameters: Sequence[nn.Parameter]) -> Optimiser:
        """A fresh optimiser; fused kernels, one call per step however many tensors there are."""
        if self.kind == "sgd":
            return Sgd(parameters, self)
        kind = torch.optim.Adam if self.kind == "adam" else torch.optim.AdamW
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)


class Sgd:
    """torch's SGD as its one fused kernel.

    The same numbers as ``torch.optim.SGD(fused=True)``, whose hooks, profiler records and groups
    take a fifth of a small net's step.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], chosen: Optimisation) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": chosen.lr}]
        self.values = [p.detach() for p in parameters]  # the same memory, not watched by autograd
        self.state: defaultdict[Any, Any] = defaultdict(dict)
        self.momentum, self.weight_decay = chosen.momentum, chosen.weight_decay

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        group = self.param_groups[0]
        all_of_them = zip(group["params"], self.values, strict=True)
        moved = [(p, value) for p, value in all_of_them if p.grad is not None]
        if not moved:
            return
        torch._fused_sgd_(
            [value for _, value in moved],
            [p.grad for p, _ in moved],
            [self._buffer(p) for p, _ in moved] if self.momentum else [],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # zeros below: the first buffer is the gradient, as it should be
        )

    def _buffer(self, parameter: Tensor) -> Tensor:
        own = self.state[parameter]
        if "momentum_buffer" not in own:
            own["momentum_buffer"] = torch.zeros_like(parameter)
        return own["momentum_buffer"]
