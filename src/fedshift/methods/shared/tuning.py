"""Training at a site outside a round: a copy of the model is fitted to the site's own samples.

FedBABU tunes the model that it is about to score, FedDBE trains once before round 1; FedALA and
PartialFed learn how the received model and their own are mixed. Nothing of it is sent, and the net
is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from fedshift import (
    Batch,
    Client,
    Log,
    Named,
    Net,
    Optimisation,
    Output,
    Step,
    Tree,
    Turn,
    call,
    descend,
    shuffled_rows,
)
from fedshift.data.augment import PRESETS, apply
from fedshift.methods.shared.branch import closed, leaves


def tuned(client: Client, keys: Set[str], epochs: int, generator: torch.Generator) -> Tree:
    """The net's entries after ``epochs`` of training those in ``keys``; the net does not change.

    The task loss, with the round's optimiser and the scenario's batches and augmentation; the hooks
    of other parts are not called. It also works while a model is scored, without gradients.
    """
    net = client.net
    with aside(net):
        entries: Tree = {
            k: nn.Parameter(v.clone()) if k in keys else v.clone()
            for k, v in net.state_dict().items()
        }

        def forward(batch: Batch) -> Output:
            return call(net, entries, batch.x)

        rate = client.scenario.optimisation(max(1, client.round))
        turn = task_turn(client, "tuning", leaves(entries), forward, rate)
        take_steps(client, turn, own_batches(client, epochs, generator))
    return closed(entries)


def task_turn(
    client: Client,
    name: str,
    moved: Named,
    forward: Callable[[Batch], Output],
    chosen: Optimisation,
) -> Turn:
    """A player that moves ``moved`` by the task's loss, whatever ``forward`` makes of them."""

    def objective(step: Step) -> Tree:
        return {name: client.task.loss(step.out.logits, step.y)}

    return Turn(name, [*moved], forward, objective, chosen)


def take_steps(client: Client, turn: Turn, batches: Iterable[Batch]) -> float:
    """Let the player take a step per batch; its mean loss, nan without any batch."""
    log = Log()
    descend(client.net, batches, [turn], log)
    found = log.means(f"{turn.name} at client {client.id}, round {client.round}")
    return found.get(turn.name, math.nan)


@contextmanager
def aside(net: Net) -> Iterator[None]:
    """Gradients, also where a model is scored without; each module's mode is restored."""
    modes = [(m, m.training) for m in net.modules()]
    try:
        with torch.inference_mode(mode=False), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def own_batches(client: Client, epochs: int, generator: torch.Generator) -> Iterator[Batch]:
    """The client's own batches, shuffled and augmented as in training."""
    train, augment = client.site.data.train, PRESETS[client.scenario.augment]
    change = partial(apply, augment, generator=generator) if augment.ops else None
    size = client.scenario.batch_size
    rows = shuffled_rows(len(train), size, generator, epochs=epochs, steps=None)
    for index, positions in enumerate(rows if epochs else ()):
        yield Batch(*train.take(positions, change), index)
