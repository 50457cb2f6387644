"""AFL: a good model for every mixture of the clients' data (Mohri et al., ICML 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Mean, Method, Server, Update, Weighting, register, setting
from fedshift.methods.groupdro import LossProbe
from fedshift.methods.shared.simplex import onto_simplex


def ascend(lam: Tensor, losses: Tensor, gamma: float) -> Tensor:
    """Proj(lam + gamma * losses) of weights and losses (n,), onto the simplex."""
    return onto_simplex(lam + gamma * losses)


@dataclass(frozen=True)
class AgnosticWeights(Weighting):
    """min over w, max over lam of sum_k lam_k F_k(w): lam <- Proj(lam + gamma F(w_t)).

    Both players move at once: a round averages with lam_t, and the losses of the received model,
    one number per client, make lam_{t+1}. The server keeps one weight per client; they start equal.
    A client whose weight reaches zero is left out until its loss is large again.
    """

    gamma: float = setting(0.01, "step of the weights", low=0.0)
    needs_full_participation = True
    needs_parts = frozenset({"loss-probe"})

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,) of this round; those of the next are kept."""
        kept = server.state[self.name]
        start = torch.full((), 1.0 / len(updates), dtype=torch.float64)
        lam = torch.stack([kept.get(u.client, start) for u in updates])  # (n,)
        losses = torch.stack([u.payload["loss-probe/loss"] for u in updates])  # (n,)
        new = ascend(lam, losses, self.gamma)
        server.state[self.name] = {u.client: w for u, w in zip(updates, new, strict=True)}
        return lam / lam.sum()


@register("afl", paper="Mohri et al., ICML 2019", group="aggregation")
def afl() -> Method:
    """FedAvg with weights that climb towards the clients with high losses.

    The server plays against the model: it raises the weight of clients on which the received model
    does badly, and projects the weights back onto the simplex. At the saddle point no mixture of
    the clients' data has a higher loss than another that has weight.

    Use it: when the worst client matters and all clients take part in every round.
    Not for: sampled clients, or a client whose labels are noise, which would get all the weight.
    Equations: Algorithm 1: `AgnosticWeights`; its ascent step: `ascend`, `onto_simplex`.
    """
    return Method((LossProbe(),), Mean(AgnosticWeights()))
