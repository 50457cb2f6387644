"""The second half of federated voting: the server trains the global model on voted labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from fedshift import Batch, Net, Output, Server, Step
from fedshift.methods.shared.target import set_batch_norm, train_at_server


def fine_tune(
    server: Server,
    name: str,
    voted: Sequence[tuple[Tensor, Tensor]],
    weights: Sequence[float],
    *,
    keep_statistics: bool,
    scale_loss: bool,
) -> None:
    """One step on ``server.net``, in place, for each of ``voted``: rows of the target, labels."""
    target = server.resources["server_unlabelled"]
    batches = (Batch(target.take(rows)[0], labels, b) for b, (rows, labels) in enumerate(voted))

    def objective(step: Step) -> dict[str, Tensor]:
        weight = weights[step.batch.index] if scale_loss else 1.0
        return {name: weight * F.cross_entropy(step.out.logits, step.y)}

    train_at_server(
        server,
        name,
        batches,
        objective,
        forward=partial(forward, server.net, keep_statistics=keep_statistics),
        rates=None if scale_loss else list(weights),
    )


def forward(net: Net, batch: Batch, *, keep_statistics: bool) -> Output:
    """The net on the batch; BatchNorm in eval mode, in place, if its statistics are kept."""
    if keep_statistics:
        set_batch_norm(net, training=False)
    out: Output = net(batch.x)
    return out
