"""Ditto: a second, personal model tied to the shared one (Li et al., ICML 2021, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    Method,
    Named,
    Net,
    Output,
    Part,
    Phase,
    Player,
    Scoring,
    Step,
    Tree,
    call,
    register,
    setting,
)
from fedshift.methods.shared.branch import closed, leaves, opened


@dataclass(frozen=True)
class PersonalModel(Part):
    """v_k minimises F_k(v) + lam/2 |v - w|^2 on the same batches as the shared w, and is scored.

    v_k starts at the first received w, has BatchNorm statistics of its own, and stays in the
    client's state. The anchor w is the received model.
    """

    lam: float = setting(0.1, "pull of the personal model to the shared one", low=0.0)

    def begin(self, client: Client) -> None:
        """Make v_k trainable: its parameters become leaves of the graph."""
        client.state[self.name] = opened(client, client.state[self.name] or client.received)

    def phases(self, client: Client) -> Sequence[Phase]:
        """On each batch the shared model takes a step, then the personal one."""
        return (Phase((Player(), Player(self.name, self.branch, self.forward, self.objective))),)

    def branch(self, client: Client) -> Named:
        """Parameters of v_k."""
        return leaves(client.state[self.name])

    def forward(self, client: Client, batch: Batch) -> Output:
        """The net with v_k in place of its own entries."""
        return call(client.net, client.state[self.name], batch.x)

    def objective(self, client: Client, step: Step) -> dict[str, Tensor]:
        """F_k(v) + lam/2 |v - w|^2."""
        gaps = [(v - client.received[k]).square().sum() for k, v in self.branch(client)]
        pull = 0.5 * self.lam * torch.stack(gaps).sum()
        task = client.task.loss(step.out.logits, step.y)
        return {f"{self.name}/task": task, self.name: pull}

    def finish(self, client: Client) -> Tree:
        """Store v_k as plain tensors; nothing of it is sent."""
        client.state[self.name] = closed(client.state[self.name])
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Score the personal model where there is one."""
        branch = scoring.client.state[self.name] if scoring.client else {}
        return call(net, branch, x).logits if branch else None


@register("ditto", paper="Li et al., ICML 2021", group="personal")
def ditto() -> Method:
    """A personal model per client, pulled towards the shared one.

    Beside the shared model of FedAvg every client trains a second model on the same batches, with a
    quadratic pull to the received one; only that second model is scored at the site and it never
    leaves it.

    Use it: every site wants a model of its own, and sites differ in more than their normalisation.
    Not for: one model for all or for new sites: the shared branch is FedAvg; local computation and
    memory are twice FedAvg's.
    Equations: Algorithm 1, lines 5 to 7: `PersonalModel.phases`; objective of v_k:
    `PersonalModel.objective`.
    """
    return Method((PersonalModel(),))
