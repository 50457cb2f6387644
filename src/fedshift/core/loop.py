"""The one training loop: clients, server phases and label-free adaptation all run through it.

``engine.visit`` calls :func:`descend` for each phase of a client's training; parts that train at
the server or at a new site (FedKA's voting, FDSE's adaptation) call it themselves. It knows nothing
of rounds, messages or parts, and no other code in the project may step an optimiser.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from fedshift.base.errors import DivergedError
from fedshift.base.tree import Tree
from fedshift.core.net import Net, OncePerBatch, Output
from fedshift.core.optimiser import Optimisation, Precision
from fedshift.data.samples import split_rows


@dataclass(slots=True)
class Batch:
    """Inputs and targets of one batch; every player that moves on it sees the same object."""

    x: Tensor  # (B, *shape)
    y: Tensor  # (B,) class indices, or (B, K) probabilities
    index: int = 0  # number of the batch within the visit
    memo: dict[str, Any] = field(default_factory=dict)  # cache, such as frozen forwards
    domains: Tensor | None = None  # (B,) domain of each sample, if a part needs sample_domains

    def replace(self, **changes: Any) -> Batch:
        """A copy with other fields and an empty cache, which held results for the old inputs."""
        return replace(self, memo={}, **changes)


@dataclass(slots=True)
class Step:
    """One player's turn on one batch: the batch, its output and the player's name."""

    batch: Batch
    out: Output
    player: str

    @property
    def y(self) -> Tensor:
        """Targets of the batch."""
        return self.batch.y


@dataclass
class Turn:
    """A player bound to a net: what it computes on a batch and which parameters it moves.

    ``engine.visit`` makes one from each :class:`~fedshift.core.method.Player` of a phase.
    """

    name: str
    parameters: list[tuple[str, nn.Parameter]]
    forward: Callable[[Batch], Output]
    objective: Callable[[Step], Mapping[str, Tensor]]
    optimisation: Optimisation
    edit_gradients: Callable[[Step], None] | None = None
    alone: bool = True  # no other player moves on the same batch; see play()
    steps: int = 0

    def __post_init__(self) -> None:
        self.moved = [p for _, p in self.parameters]
        device = self.moved[0].device.type if self.moved else "cpu"
        self.reduced = partial(reduced, self.optimisation.precision, device)
        self.optimiser = self.optimisation.build(self.moved)

    def play(self, batch: Batch, log: Log) -> None:
        """Forward, backward, edit the gradients, clip, step; log the loss terms.

        Where several players share a batch, the backward pass is restricted to this player's own
        parameters (``inputs``), or it would leave gradients in the others'. A player that is
        ``alone`` needs no such list, and a plain backward is faster.
        """
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
            parameter.grad = None  # or the next player's hooks would see them
        self.steps += 1
        log.add(batch.index, terms)


def reduced(precision: Precision, device: str) -> AbstractContextManager[Any]:
    """The context in which forward passes and losses are computed in ``precision``."""
    return torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext()


class Log:
    """Loss terms by name, one value per step.

    They are kept as tensors and read at the end of the visit: one synchronisation with the device
    instead of one per step. The price is that a NaN is noticed only then.
    """

    def __init__(self) -> None:
        self.terms: dict[str, list[tuple[int, Tensor]]] = {}

    def add(self, step: int, terms: Mapping[str, Tensor]) -> None:
        """Append one player's loss terms of one step."""
        for name, value in terms.items():
            self.terms.setdefault(name, []).append((step, value.detach()))

    def means(self, where: str) -> dict[str, float]:
        """Mean of each term; raises with the step and the term of the first non-finite value."""
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
    """Train: on each batch, let each player take its turn. The one place where weights are trained.

    Trains ``net`` (and whatever else the players own) in place and leaves it in train mode.
    Parameters that no player moves get no gradient.

    BatchNorm statistics must move once per batch, however many forward passes the batch sees;
    :class:`OncePerBatch` ensures it with a hook on every BatchNorm layer. A caller that knows that
    each batch is forwarded exactly once passes ``one_forward``, and no hook is installed: the
    numbers are the same, and plain FedAvg does not pay for the bookkeeping. ``engine.visit`` does
    so for a single player with the default forward pass if no part overrides ``batch``, ``loss`` or
    ``edit_gradients``, since any of these might run the net again.
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
    """Set train mode and freeze the parameters that no player moves, in place; returns those."""
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
        if not module.training:  # train() costs more than this check
            module.train()
    for module in net.fixed:
        module.training = False
    return idle


def shuffled_rows(
    n: int, size: int, generator: torch.Generator, *, epochs: int | None, steps: int | None
) -> Iterator[Tensor]:
    """Batches of row indices, reshuffled each epoch, for ``epochs`` or, if given, ``steps``."""
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
    """The optimiser's tensors as "player/parameter/key", for ``optimiser_state=keep``."""
    out: Tree = {}
    for name, parameter in turn.parameters:
        for key, value in turn.optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                out[f"{turn.name}/{name}/{key}"] = value.detach().clone()
    return out


def restore_optimiser(turn: Turn, state: Mapping[str, Tensor]) -> None:
    """Inverse of :func:`optimiser_state`, in place; parameters without saved tensors start anew."""
    for name, parameter in turn.parameters:
        head = f"{turn.name}/{name}/"
        kept = {k[len(head) :]: v.clone() for k, v in state.items() if k.startswith(head)}
        if kept:
            turn.optimiser.state[parameter].update(kept)
