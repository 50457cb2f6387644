"""THE training loop: clients, server phases and label-free adaptation all run through it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from fedshift.base.errors import DivergedError
from fedshift.base.tree import Tree
from fedshift.core.net import Net, OncePerBatch, Output
from fedshift.core.optimiser import Optimisation
from fedshift.data.samples import split_rows


@dataclass(slots=True)
class Batch:
    """Inputs and targets of one step; every player of the step sees the same one."""

    x: Tensor  # (B, *shape)
    y: Tensor  # (B,) class indices, or (B, K) probabilities
    index: int = 0  # number of the batch within the visit
    memo: dict[str, Any] = field(default_factory=dict)  # what players and parts share on this batch

    def replace(self, **changes: Any) -> Batch:
        """A copy with other fields; what was noted about the old inputs does not pass on."""
        return replace(self, memo={}, **changes)


@dataclass(slots=True)
class Step:
    """One player's turn on one batch."""

    batch: Batch
    out: Output
    player: str

    @property
    def y(self) -> Tensor:
        """Targets of the batch."""
        return self.batch.y


@dataclass
class Turn:
    """A player made concrete: what it computes on a batch and which parameters it moves."""

    name: str
    parameters: list[tuple[str, nn.Parameter]]
    forward: Callable[[Batch], Output]
    objective: Callable[[Step], Mapping[str, Tensor]]
    optimisation: Optimisation
    edit_gradients: Callable[[Step], None] | None = None
    alone: bool = True  # the only one who moves anything: a plain backward is enough
    steps: int = 0

    def __post_init__(self) -> None:
        self.moved = [p for _, p in self.parameters]
        device = self.moved[0].device.type if self.moved else "cpu"
        lower = self.optimisation.precision == "bfloat16"
        self.reduced = partial(torch.autocast, device, torch.bfloat16) if lower else nullcontext
        self.optimiser = self.optimisation.build(self.moved)

    def play(self, batch: Batch, log: Log) -> None:
        """Forward, backward, correct, clip, step."""
        with self.reduced():
            step = Step(batch, self.forward(batch), self.name)
            terms = self.objective(step)
        total = (
            torch.stack(list(terms.values())).sum()
            if len(terms) > 1
            else next(iter(terms.values()))
        )
        torch.autograd.backward(total, inputs=None if self.alone else self.moved)
        if self.edit_gradients is not None:
            self.edit_gradients(step)
        if self.optimisation.clip is not None:
            clip_grad_norm_(self.moved, self.optimisation.clip)
        self.optimiser.step()
        for parameter in self.moved:
            parameter.grad = None  # the next player's hooks see only its own
        self.steps += 1
        log.add(batch.index, terms)


class Log:
    """Loss terms by name, kept as tensors: one synchronisation per visit, not one per step."""

    def __init__(self) -> None:
        self.terms: dict[str, list[tuple[int, Tensor]]] = {}

    def add(self, step: int, terms: Mapping[str, Tensor]) -> None:
        """Note one player's terms at one step."""
        for name, value in terms.items():
            self.terms.setdefault(name, []).append((step, value.detach()))

    def means(self, where: str) -> dict[str, float]:
        """Mean of each term; the first value that is not finite stops the run and is named."""
        values = {k: torch.stack([v for _, v in rows]).tolist() for k, rows in self.terms.items()}
        bad = [
            (self.terms[name][i][0], name, value)
            for name, row in values.items()
            for i, value in enumerate(row)
            if not math.isfinite(value)
        ]
        if bad:
            step, name, value = min(bad, key=lambda item: item[0])
            raise DivergedError(
                f"{where}, step {step}: loss term {name!r} is {value}; lower lr, or set clip"
            )
        return {name: statistics.fmean(row) for name, row in values.items()}


def descend(
    net: Net,
    batches: Iterable[Batch],
    turns: Sequence[Turn],
    log: Log,
    *,
    one_forward: bool = False,
) -> None:
    """Offer each batch to each player in turn. The one place where weights are trained.

    Trains ``net`` (and whatever else the players own) in place and leaves it in train mode.
    Parameters that nobody moves get no gradient; BatchNorm statistics move once per batch, which
    need not be watched where a batch has ``one_forward``.
    """
    idle = _make_ready(net, turns)
    try:
        with OncePerBatch(() if one_forward else net.modules()) as once:
            for batch in batches:
                for turn in turns:
                    turn.play(batch, log)
                once.next_batch()
    finally:
        for parameter in idle:
            parameter.requires_grad_(True)


def _make_ready(net: Net, turns: Sequence[Turn]) -> list[nn.Parameter]:
    """Train mode and no gradients but of what is moved, in place; the parameters left out."""
    moving = {id(p) for turn in turns for p in turn.moved}
    idle = []
    for parameter in net.parameters():
        parameter.grad = None  # no gradient of an earlier visit may reach a hook
        if parameter.requires_grad and id(parameter) not in moving:
            parameter.requires_grad_(False)
            idle.append(parameter)
    for turn in turns:
        turn.alone = len(turns) == 1
    for module in net.modules():
        if not module.training:  # setting it costs more than asking
            module.train()
    return idle


def shuffled_rows(
    n: int, size: int, generator: torch.Generator, *, epochs: int | None, steps: int | None
) -> Iterator[Tensor]:
    """Index batches for a number of epochs or, if ``steps`` is given, of steps."""
    taken = 0
    epoch = 0
    while (epoch < (epochs or 1)) if steps is None else (taken < steps):
        for rows in split_rows(torch.randperm(n, generator=generator), size):
            if steps is not None and taken >= steps:
                return
            yield rows
            taken += 1
        epoch += 1


def optimiser_state(turn: Turn) -> Tree:
    """The optimiser's tensors, "player/parameter/key", for scenarios that keep them over rounds."""
    out: Tree = {}
    for name, parameter in turn.parameters:
        for key, value in turn.optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                out[f"{turn.name}/{name}/{key}"] = value.detach().clone()
    return out


def restore_optimiser(turn: Turn, state: Mapping[str, Tensor]) -> None:
    """Put kept tensors back, in place; players and parameters without any start afresh."""
    for name, parameter in turn.parameters:
        head = f"{turn.name}/{name}/"
        kept = {k[len(head) :]: v.clone() for k, v in state.items() if k.startswith(head)}
        if kept:
            turn.optimiser.state[parameter].update(kept)
