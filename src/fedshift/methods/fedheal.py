"""FedHEAL: keeps sign-consistent updates, weighted by their length (Chen et al., CVPR 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Aggregator, Method, Server, Tree, Update, Weighting, register, setting


def consistent(u: Tensor, increases: Tensor, visits: int, tau: float) -> Tensor:
    """Mask 1[c > tau] of an update ``u``, c the share of earlier updates with its sign.

    ``increases`` counts, weight by weight, how many of ``visits`` updates were not negative.
    """
    return torch.where(u >= 0, increases, visits - increases) > tau * visits


def distance(masked: Tree) -> Tensor:
    """Sum over tensors of |masked update|_2."""
    return sum((v.norm().double() for v in masked.values()), torch.zeros((), dtype=torch.float64))


def next_weights(w: Tensor, q: Tensor, d: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Compute q <- (1 - beta) q + beta d / sum d, then w <- w + q; all (n,), w not renormalised."""
    q = (1 - beta) * q + beta * d / d.sum().clamp(min=torch.finfo(d.dtype).tiny)
    return w + q, q


def masked_step(
    updates: Sequence[Tensor], masks: Sequence[Tensor], weights: Sequence[float]
) -> Tensor:
    """sum_k w_k m_k u_k / sum_k w_k m_k, element by element; 0 where every mask is 0."""
    total, share = torch.zeros_like(updates[0]), torch.zeros_like(updates[0])
    for u, m, w in zip(updates, masks, weights, strict=True):
        total.add_(u * m, alpha=w)
        share.add_(m, alpha=w)
    return torch.where(share > 0, total / share, 0.0)


@dataclass(frozen=True)
class ConsistentMean(Aggregator):
    """theta + sum_k w_k m_k u_k / sum_k w_k m_k, u_k = theta_k - theta, m_k its consistent mask.

    Trained parameters are masked, buffers averaged with w_k. An update of exactly 0 counts as an
    increase, and the history counts only rounds that a client took part in. The server keeps one
    float per shared parameter and client, in memory and in every checkpoint.
    """

    tau: float = setting(0.3, "consistency above which an update counts", low=-1.0, high=1.0)
    needs_individual_updates = True

    def mask(self, server: Server, client: str, key: str, u: Tensor) -> Tensor:
        """Which weights of the update ``u`` of one entry count; all, in a client's first round."""
        kept = server.state[self.name]
        if client not in kept:
            return torch.ones_like(u, dtype=torch.bool)
        return consistent(u, kept[f"{client}/{key}"], int(kept[client]), self.tau)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """Mask and average entry by entry, then add this round's signs to the history."""
        out: Tree = {}
        signs: Tree = {}
        w = weights.tolist()
        for key in sorted(server.parameters):
            moved = {u.client: u.shared[key] - server.shared[key] for u in updates}
            masks = [self.mask(server, client, key, u) for client, u in moved.items()]
            out[key] = server.shared[key] + masked_step(list(moved.values()), masks, w)
            signs |= {f"{client}/{key}": (u >= 0).to(u.dtype) for client, u in moved.items()}
        signs |= {u.client: torch.tensor(1) for u in updates}
        kept = server.state[self.name]
        server.state[self.name] = kept | {k: v + kept.get(k, 0) for k, v in signs.items()}
        return out


def masked_update(server: Server, update: Update) -> Tree:
    """m_k u_k of one client, or u_k itself if the aggregator does not mask."""
    rule = server.method.aggregate
    moved = {k: update.shared[k] - server.shared[k] for k in sorted(server.parameters)}
    if not isinstance(rule, ConsistentMean):
        return moved
    return {k: u * rule.mask(server, update.client, k, u) for k, u in moved.items()}


@dataclass(frozen=True)
class DistanceWeights(Weighting):
    """w_k / sum w, where w_k grows by a running mean q_k of client k's share of the distances.

    Kept at the server per client: w_k starts at 1 / (participants of its first round), q_k at 0,
    and w_k is never renormalised. Hence new distances count less and less, and a client that is
    rarely sampled keeps a small weight. Distances are those of the masked updates.
    """

    beta: float = setting(0.4, "step of the running mean", low=0.0, high=1.0)
    needs_individual_updates = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,)."""
        kept = server.state[self.name]
        start = torch.tensor([1.0 / len(updates), 0.0], dtype=torch.float64)
        w, q = torch.stack([kept.get(u.client, start) for u in updates], dim=1)  # (n,) each
        d = torch.stack([distance(masked_update(server, u)) for u in updates])  # (n,)
        new = torch.stack(next_weights(w, q, d, self.beta), dim=1)  # (n, 2)
        told = {u.client: row for u, row in zip(updates, new, strict=True)}
        server.state[self.name] = kept | told
        return new[:, 0] / new[:, 0].sum()


@register("fedheal", paper="Chen et al., CVPR 2024", group="aggregation")
def fedheal() -> Method:
    """Mean of sign-consistent updates, weighted by their lengths.

    An update of a weight counts only if the client has mostly moved that weight in the same
    direction before. Clients whose masked updates are longer gain weight from round to round.

    Use it: domains are unequally hard and the mean follows the easy ones; it changes nothing at the
    sites.
    Not for: secure aggregation or very many clients: the server keeps one float per weight and
    client.
    Equations: consistency and mask: `consistent`; distances: `distance`; weights: `next_weights`;
    masked mean: `masked_step`.
    """
    return Method(aggregate=ConsistentMean(DistanceWeights()))
