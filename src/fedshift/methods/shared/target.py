"""Unlabelled target inputs at the server: clients' models on them, and training with given labels.

FedKA's voting and KD3A let the participants' models label the target and train the server's net on
the result. Both use ``server.net`` as scratch memory and the resource ``server_unlabelled``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift import (
    Batch,
    Log,
    Net,
    Output,
    Server,
    Step,
    Turn,
    Update,
    descend,
    parameters_of,
    tree,
)
from fedshift.core.loop import optimiser_state, restore_optimiser
from fedshift.core.net import load
from fedshift.data.samples import split_rows

CHUNK = 512  # target inputs per forward pass of a client's model


def set_batch_norm(net: Net, *, training: bool) -> None:
    """Train or eval mode of every BatchNorm, in place; nothing else changes its mode."""
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.train(training)


def outputs_of(server: Server, update: Update, rows: Tensor, *, by_target: bool) -> Output:
    """Logits (N, K) and features (N, D) of one client's model on target inputs ``rows`` (N,).

    With ``by_target`` its BatchNorm layers normalise by the statistics of these inputs.
    """
    target = server.resources["server_unlabelled"]
    load(server.net, server.initial | server.shared | update.shared | update.personal)
    set_batch_norm(server.net.eval(), training=by_target)
    with torch.no_grad():
        outs = [server.net(target.take(chunk)[0]) for chunk in split_rows(rows, CHUNK)]
    logits, features = ([getattr(out, key) for out in outs] for key in ("logits", "features"))
    return Output(torch.cat(logits), torch.cat(features))


def train_at_server(
    server: Server,
    part: str,
    batches: Iterable[Batch],
    objective: Callable[[Step], Mapping[str, Tensor]],
    *,
    forward: Callable[[Batch], Output] | None = None,
    rates: Sequence[float] | None = None,
) -> None:
    """One step of the scenario's optimiser per batch on the shared parameters of ``server.net``.

    In place. ``rates`` scale the learning rate of each batch. Under ``optimiser_state=keep`` the
    optimiser goes on from what the state of ``part`` holds.
    """
    optimisation = server.scenario.optimisation(server.round)

    def through(batch: Batch) -> Output:
        out: Output = server.net(batch.x)
        return out

    def scale_step(step: Step) -> None:
        for group in turn.optimiser.param_groups:
            group["lr"] = (rates or ())[step.batch.index] * optimisation.lr

    turn = Turn(
        part,
        parameters_of(server.net, server.parameters),
        forward or through,
        objective,
        optimisation,
        None if rates is None else scale_step,
    )
    keep = server.scenario.optimiser_state == "keep"
    if keep:
        restore_optimiser(turn, tree.under("optimiser", server.state[part]))
    log = Log()
    descend(server.net, batches, [turn], log)
    log.means(f"{part}, server, round {server.round}")
    if keep:
        server.state[part] |= tree.prefixed("optimiser", optimiser_state(turn))
