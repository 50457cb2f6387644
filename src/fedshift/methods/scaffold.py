"""SCAFFOLD: control variates undo client drift (Karimireddy et al., ICML 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedshift import (
    Add,
    Client,
    Mean,
    Method,
    ModelSpec,
    Part,
    Server,
    Step,
    Tree,
    Uniform,
    Update,
    Uploads,
    register,
    tree,
)


@dataclass(frozen=True)
class ControlVariates(Part):
    """y <- y - lr (g(y) - c_i + c), and c_i+ = c_i - c + (x - y) / (K lr), option II.

    ``c`` goes down and ``c_i+ - c_i`` comes up, each the size of the shared parameters; c_i stays
    in the client's state and starts at zero. K is the number of optimiser steps taken. The
    estimate assumes plain SGD: with momentum m the effective step is lr / (1 - m).
    """

    optimisers = frozenset({"sgd"})
    shares = "the change of its control variate, a mean of gradients"

    def uploads(self, model: ModelSpec) -> Uploads:
        """The change of c_i, one entry per shared parameter."""
        return {"train": model.per_parameter()}

    def begin(self, client: Client) -> None:
        """c_i = 0 before the first visit."""
        if not client.state[self.name]:
            client.state[self.name] = {k: torch.zeros_like(x) for k, _, x in client.anchors()}

    def edit_gradients(self, client: Client, step: Step) -> None:
        """Algorithm 1, line 10."""
        c, c_i = client.payload(self), client.state[self.name]
        for k, y, _ in client.anchors():
            if y.grad is not None:
                y.grad.add_(c[k] - c_i[k])

    def finish(self, client: Client) -> Tree:
        """Algorithm 1, lines 12 and 13."""
        c, c_i = client.payload(self), client.state[self.name]
        scale = 1.0 / (client.steps * client.lr)
        new = {k: c_i[k] - c[k] + (x - y.detach()) * scale for k, y, x in client.anchors()}
        client.state[self.name] = new
        return tree.sub(new, c_i)

    def send(self, server: Server, client: str) -> Tree:
        """The server's control variate."""
        return server.state[self.name] or tree.zeros_like(
            tree.pick(server.shared, server.parameters)
        )

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Line 17: c <- c + 1/N sum of the changes; N counts all clients, not the participants."""
        c = self.send(server, "")
        for update in updates:
            c = tree.add(c, tree.under(self.name, update.payload), 1.0 / len(server.roster))
        server.state[self.name] = c


@register("scaffold", paper="Karimireddy et al., ICML 2020", group="optimisation")
def scaffold() -> Method:
    """Control variates undo the drift of each client.

    Server and clients keep an estimate of their mean gradients, and each local step is corrected by
    the difference, so that clients walk to the joint optimum and not to their own.

    Use it: long local training with plain SGD, on clients that return in most rounds.
    Not for: momentum or Adam, rare participation, and narrow links: twice FedAvg's bytes both ways.
    Equations: Algorithm 1, line 10: `ControlVariates.edit_gradients`; lines 12 and 13:
    `ControlVariates.finish`; line 17: `ControlVariates.merge`.
    """
    return Method((ControlVariates(),), Mean(Uniform(), Add()))
