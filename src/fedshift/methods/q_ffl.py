"""q-FFL: clients with a high loss move the model more (Li et al., ICLR 2020, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Aggregator,
    Method,
    Server,
    Tree,
    Update,
    register,
    setting,
    tree,
    weighted_mean,
)
from fedshift.methods.groupdro import LossProbe

SMALL = 1e-10  # least loss: a power of zero has no slope


def fair_shares(p: Tensor, losses: Tensor, squares: Tensor, q: float, lipschitz: float) -> Tensor:
    """p_k F_k^q / sum_j p_j (F_j^q + q F_j^(q-1) L |w - w_j|^2), all (n,).

    Algorithm 2 divides sum_k F_k^q L (w - w_k) by sum_k h_k with
    h_k = q F_k^(q-1) L^2 |w - w_k|^2 + L F_k^q; one L cancels. Powers are of F_k / max F.
    """
    losses = losses.clamp(min=SMALL)
    power = p * (losses / losses.max()) ** q
    return power / (power * (1 + q * lipschitz * squares / losses)).sum()


@dataclass(frozen=True)
class FairMean(Aggregator):
    """w + sum_k c_k (w_k - w), c_k from F_k^q; minimises sum_k p_k F_k^(q+1) / (q+1).

    F_k is the training loss of the received model, one number per client, and L = 1 / lr estimates
    the Lipschitz constant of a client's gradient. The c_k sum to less than one if q > 0: the step
    gets shorter the larger the updates are. p_k are the scenario's client weights.
    """

    q: float = setting(0.1, "how much high losses count more; 0: FedAvg", low=0.0)
    needs_individual_updates = True
    needs_parts = frozenset({"loss-probe"})
    optimisers = frozenset({"sgd"})

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """Algorithm 2 as one mean of the client models and the old model."""
        old = tree.pick(server.shared, server.parameters)
        models = [tree.pick(u.shared, server.parameters) for u in updates]
        losses = torch.stack([u.payload["loss-probe/loss"] for u in updates])  # (n,)
        squares = torch.stack([square_distance(m, old) for m in models])  # (n,)
        rate = server.scenario.optimisation(server.round).lr
        shares = fair_shares(weights, losses, squares, self.q, 1.0 / rate)
        return weighted_mean([*models, old], torch.cat([shares, (1 - shares.sum())[None]]))


def square_distance(a: Tree, b: Tree) -> Tensor:
    """|a - b|^2 over all entries, in float64."""
    return torch.stack([(a[k] - b[k]).double().square().sum() for k in b]).sum()


@register("q-ffl", paper="Li et al., ICLR 2020", group="aggregation")
def q_ffl() -> Method:
    """FedAvg that lets clients with a high loss move the model more.

    Each client's loss is raised to the power q + 1, so that its gradient is scaled by F_k^q. The
    server's step size follows from an estimate of the curvature and needs no tuning when q changes.

    Use it: when accuracies should be alike over clients and some average may be given up for it.
    Not for: local optimisers other than SGD, or clients with wrong labels.
    Equations: Algorithm 2: `FairMean`, `fair_shares`.
    """
    return Method((LossProbe(),), FairMean())
