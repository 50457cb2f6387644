"""Train a small net at the server on what clients sent: FedTGP's prototypes, ADCOL's discriminator.

The net lives in the server state of its part, as entries ``net/...``, and goes on from there in the
next round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedshift import (
    Batch,
    Log,
    Net,
    Optimisation,
    Output,
    Server,
    Step,
    Tree,
    Turn,
    descend,
    seeds,
    shuffled_rows,
    tree,
)
from fedshift.core.net import load


@dataclass(frozen=True)
class Passes:
    """How long a server phase lasts: passes over the data, samples per step, rate of plain SGD."""

    epochs: int
    batch: int
    lr: float


def held_net(server: Server, part: str, make: Callable[[], Net]) -> Net:
    """The net of ``part`` as the last round left it, at first as ``make`` builds it by the seed."""
    with seeds.fork(server.seed, part):
        net = make()
    load(net, tree.under("net", server.state[part]))
    return net


def kept_net(net: Net) -> Tree:
    """Its entries as they are kept in the state of the part."""
    return tree.prefixed("net", tree.clone(net.state_dict()))


def fit(
    server: Server,
    part: str,
    net: Net,
    samples: tuple[Tensor, Tensor],
    passes: Passes,
    losses: tuple[Callable[[Batch], Output], Callable[[Step], Tensor]],
) -> None:
    """Train ``net`` in place on ``samples`` (n, ...) and their targets (n,).

    ``losses`` are the forward pass of a batch and the loss of a step. No pass leaves it as it is.
    """
    if not passes.epochs:
        return
    (x, y), (forward, loss) = samples, losses
    turn = Turn(
        part,
        [*net.named_parameters()],
        forward,
        lambda step: {part: loss(step)},
        Optimisation(lr=passes.lr),
    )
    rows = shuffled_rows(
        len(x), passes.batch, server.generator(part), epochs=passes.epochs, steps=None
    )
    log = Log()
    batches = (Batch(x[some], y[some], i) for i, some in enumerate(rows))
    descend(net, batches, [turn], log)
    log.means(f"{part}, server, round {server.round}")
