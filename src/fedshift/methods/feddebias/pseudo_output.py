"""The current pseudo-data and the client's net on them, for the parts that add a loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift import (
    Batch,
    Client,
    ConfigError,
    Output,
    Part,
    Server,
)
from fedshift.methods.feddebias.pseudo_data import PseudoData

NAME = PseudoData().name


def pseudo_inputs(client: Client) -> Tensor:
    """x_p of the current batch (B, *shape)."""
    return client.scratch[NAME]["x"]


def own_labels(client: Client) -> Tensor | None:
    """y_p (B, C) where local samples are mixed in; None if every label is 1/C."""
    return client.scratch[NAME].get("y")


def pseudo_output(client: Client, batch: Batch) -> Output:
    """The client's net on x_p, one forward pass however many parts use it.

    BatchNorm normalises x_p by its running statistics and does not update them: means of inputs
    vary little, and batch statistics of their own would scale them up until they look like data.
    """
    key = f"{NAME}/output"
    if key not in batch.memo:
        layers = [m for m in client.net.modules() if isinstance(m, _BatchNorm) and m.training]
        for layer in layers:
            layer.eval()
        batch.memo[key] = client.net(pseudo_inputs(client))
        for layer in layers:
            layer.train()
    out: Output = batch.memo[key]
    return out


def require_pseudo_data(part: Part, server: Server) -> None:
    """Raise if no part of the method makes the pseudo-data that ``part`` uses."""
    if not any(isinstance(p, PseudoData) for p in server.method.parts):
        raise ConfigError(f"{part.name} works on pseudo-data, and no part makes it; add + {NAME}")
