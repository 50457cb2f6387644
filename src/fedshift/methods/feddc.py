"""FedDC: local drift is learnt and taken out before averaging (Gao et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedshift import (
    Channel,
    Client,
    Mean,
    Method,
    Step,
    Tree,
    Uniform,
    Update,
    register,
    setting,
    tree,
)
from fedshift.methods.scaffold import ControlVariates


@dataclass(frozen=True)
class LocalDrift(Channel):
    """alpha/2 |w + h_k - theta|^2; then h_k <- h_k + w_k - theta, and w_k + h_k is sent.

    h_k, the drift of client k, starts at zero, covers the shared parameters and never leaves the
    client by itself. What is sent has the size of the model.
    """

    alpha: float = setting(0.1, "weight of the penalty", low=0.0)

    def begin(self, client: Client) -> None:
        """h_k = 0 before the first visit."""
        if not client.state[self.name]:
            client.state[self.name] = {k: torch.zeros_like(x) for k, _, x in client.anchors()}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The penalty R_k, with the drift of the visits before."""
        h = client.state[self.name]
        gaps = [(w + h[k] - theta).square().sum() for k, w, theta in client.anchors()]
        return 0.5 * self.alpha * torch.stack(gaps).sum() if gaps else None

    def finish(self, client: Client) -> Tree:
        """Add this round's update to the drift."""
        h = client.state[self.name]
        client.state[self.name] = {k: h[k] + w.detach() - x for k, w, x in client.anchors()}
        return {}

    def encode(self, client: Client, update: Update) -> Update:
        """w_k + h_k in place of w_k; the client's own copy stays w_k."""
        h = client.state[self.name]
        return replace(update, shared=update.shared | {k: update.shared[k] + h[k] for k in h})


@dataclass(frozen=True)
class UpdateCorrection(ControlVariates):
    """<w, g - g_k>, added as gradient: g_k = (theta - w_k) / (lr K) of the client's last visit.

    g is the mean of all clients' g_k. The change of g_k comes up and g goes down, each the size of
    the shared parameters, as SCAFFOLD's control variates; K is the number of optimiser steps.
    """

    accumulated: bool = setting(False, "g_k <- g_k - g + (theta - w_k) / (lr K), as released")

    def finish(self, client: Client) -> Tree:
        """The next g_k; its change is sent."""
        if self.accumulated:
            return super().finish(client)
        old, scale = client.state[self.name], 1.0 / (client.steps * client.lr)
        new = {k: (x - w.detach()) * scale for k, w, x in client.anchors()}
        client.state[self.name] = new
        return tree.sub(new, old)


@register("feddc", paper="Gao et al., CVPR 2022", group="optimisation")
def feddc() -> Method:
    """FedAvg of models from which each client's own drift is removed.

    Every client keeps the sum of its past updates as its drift, is pulled to where its model plus
    drift meets the received model, and sends the sum of both. Gradients are corrected by the
    difference of global and local updates of the round before.

    Use it: when few rounds are affordable and each has many local steps on skewed data.
    Not for: few local steps a round, where the penalty is too weak and the drift overshoots.
    Equations: penalty: `LocalDrift.loss`; gradient correction: `UpdateCorrection`; drift:
    `LocalDrift.finish`; aggregation: `LocalDrift.encode`.
    """
    return Method((UpdateCorrection(), LocalDrift()), Mean(Uniform()))
