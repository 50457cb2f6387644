"""FedProx: stay near the model that the server sent (Li et al., MLSys 2020, Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting


@dataclass(frozen=True)
class Proximal(Part):
    """mu/2 * |w - w_t|^2 over the parameters that the server sent, from the first step on.

    Some released implementations use the unsquared norm or a hidden factor 0.01; this is Eq. 2.
    """

    mu: float = setting(0.01, "weight of the pull", low=0.0)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """d/dw = mu (w - w_t)."""
        gaps = [(p - w_t).square().sum() for _, p, w_t in client.anchors()]
        return 0.5 * self.mu * torch.stack(gaps).sum() if gaps else None


@register("fedprox", paper="Li et al., MLSys 2020", group="optimisation")
def fedprox() -> Method:
    """FedAvg with a quadratic pull towards the received model.

    Each local step is drawn back towards the model that the server sent, in proportion to how far
    it has gone, so that long local training does not drift.

    Use it: local training is long or sites differ, and something as cheap and as stable as FedAvg
    is wanted.
    Not for: short local training, where there is no drift to limit and the pull only slows
    learning.
    Equations: Eq. 2: `Proximal.loss`.
    """
    return Method((Proximal(),))
