"""Training at a site outside a round: a copy of the model is fitted to the site's own samples.

FedBABU tunes the model that it is about to score, FedDBE trains once before round 1. Nothing of it
is sent, and the net is left as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from fedshift import Batch, Client, Log, Net, Output, Step, Tree, Turn, call, descend, shuffled_rows
from fedshift.data.augment import PRESETS, apply


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

        def objective(step: Step) -> Tree:
            return {"task": client.task.loss(step.out.logits, step.y)}

        moved = [(k, v) for k, v in entries.items() if isinstance(v, nn.Parameter)]
        rate = client.scenario.optimisation(max(1, client.round))
        turn = Turn("tuned", moved, forward, objective, rate)
        log = Log()
        descend(net, own_batches(client, epochs, generator), [turn], log)
        log.means(f"tuning at client {client.id}, round {client.round}")
    return {k: v.detach() for k, v in entries.items()}


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
