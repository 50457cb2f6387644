"""Client optimisers: torch's Adam and AdamW, and an SGD that calls torch's fused kernel directly.

The scenario chooses the :class:`Optimisation` of a round, the same for every method, and the
training loop builds an optimiser from it for each phase. A part may replace it for one of its
players, and must not change it for another part's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

Precision = Literal["float32", "bfloat16"]


class Optimiser(Protocol):
    """The interface that the loop and its callers need; torch's optimisers have it."""

    param_groups: list[dict[str, Any]]
    state: defaultdict[Any, Any]  # parameter -> name -> tensor

    def step(self) -> object:
        """Move the parameters along their gradients, in place."""
        ...


@dataclass(frozen=True)
class Optimisation:
    """Optimiser settings of one round: the scenario's choice, the same for every method."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None  # largest gradient norm; None: no clipping
    precision: Precision = "float32"

    def build(self, parameters: Sequence[nn.Parameter]) -> Optimiser:
        """A new optimiser with fused kernels: one call per step for all tensors together."""
        if self.kind == "sgd":
            return Sgd(parameters, self)
        kind = torch.optim.Adam if self.kind == "adam" else torch.optim.AdamW
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)


class Sgd:
    """SGD with momentum and weight decay, as one call of torch's fused kernel.

    Gives the same numbers as ``torch.optim.SGD(fused=True)``. That class also runs step hooks,
    profiler records and a loop over parameter groups, which take a fifth of a small net's step.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], chosen: Optimisation) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": chosen.lr}]
        self.values = [p.detach() for p in parameters]  # same memory, but not tracked by autograd
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
            is_first_step=False,  # right, as momentum buffers start at zero: m * 0 + grad
        )

    def _buffer(self, parameter: Tensor) -> Tensor:
        own = self.state[parameter]
        if "momentum_buffer" not in own:
            own["momentum_buffer"] = torch.zeros_like(parameter)
        return own["momentum_buffer"]
