"""Weights by a client's size, and by how far its share of the samples is from a domain's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from fedshift import (
    Server,
    Update,
    Weighting,
    setting,
)


def domain_discrepancy(share: Tensor, domains: int, classes: int) -> Tensor:
    """Eq. 10: d_k = sqrt(1/2 sum_c (B_k^c - 1/Q)^2), B_k^c = n_k/N = ``share`` (n,) in each class.

    C equal terms make it sqrt(C/2) |n_k/N - 1/Q|.
    """
    return sqrt(classes / 2) * (share - 1 / domains).abs()


def domain_aware_weights(share: Tensor, discrepancy: Tensor, alpha: float, beta: float) -> Tensor:
    """Eq. 11: p_k = sigmoid(alpha n_k/N - beta d_k), divided by their sum."""
    p = (alpha * share - beta * discrepancy).sigmoid()  # (n,)
    return p / p.sum()


@dataclass(frozen=True)
class DomainAware(Weighting):
    """More weight for many examples and for a share near 1/Q (Eqs. 10-11), Q the number of domains.

    N counts the participants' examples, so the weights of a round depend on its participants;
    ``total=all`` counts every client's. Either way they sum to one over the participants.
    """

    alpha: float = setting(1.0, "weight of the size, Eq. 11", low=0.0)
    beta: float = setting(0.4, "weight of the discrepancy, Eq. 11", low=0.0)
    total: str = setting("participants", "whose examples N counts", choices=("participants", "all"))
    from_enrolments = True
    needs = frozenset({"domain_ids"})

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,)."""
        everybody = list(server.roster.values())
        counted = updates if self.total == "participants" else everybody
        n = torch.tensor([u.examples for u in updates], dtype=torch.float64)
        share = n / sum(u.examples for u in counted)
        domains = len({u.facts["domain"] for u in everybody})
        d = domain_discrepancy(share, domains, server.net.classes)
        return domain_aware_weights(share, d, self.alpha, self.beta)
