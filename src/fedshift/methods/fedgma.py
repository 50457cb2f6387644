"""FedGMA: coordinates on which clients disagree move less (Tenison et al., TMLR 2023)."""

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


def agreement_mask(signs: Tensor, tau: float) -> Tensor:
    """1 where A >= tau, else A, with A = |sum of signs| / n; from signs (n, ...) of updates."""
    agreement = signs.mean(0).abs()
    return torch.where(agreement >= tau, torch.ones_like(agreement), agreement)


@dataclass(frozen=True)
class AgreementMask(Aggregator):
    """theta + m * sum_k p_k (theta_k - theta), m the soft mask of the clients' agreement in sign.

    Every client has one vote on each coordinate; p_k are the scenario's client weights. Buffers are
    averaged. The server's rate is ``add.lr``.
    """

    tau: float = setting(0.4, "agreement from which a coordinate moves fully", low=0.0, high=1.0)
    needs_individual_updates = True

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """Mean and mask, entry by entry."""
        mean = weighted_mean([tree.pick(u.shared, server.parameters) for u in updates], weights)
        out: Tree = {}
        for key, value in mean.items():
            old = server.shared[key]
            signs = torch.stack([(u.shared[key] - old).sign() for u in updates])  # (n, ...)
            out[key] = old.lerp(value, agreement_mask(signs, self.tau))
        return out


@register("fedgma", paper="Tenison et al., TMLR 2023", group="aggregation")
def fedgma() -> Method:
    """FedAvg whose coordinates move as far as the clients agree in sign.

    A direction that helps one domain and hurts another is likely to be specific to domains. Where
    the signs of the clients' updates agree the mean is taken, elsewhere it is scaled down.

    Use it: for one model over different domains, with more than a handful of clients.
    Not for: two or three clients, of which the sign of one decides.
    Equations: the agreement score and the mask: `agreement_mask`; the update: `AgreementMask`.
    """
    return Method(aggregate=AgreementMask())
