"""FedMGDA+: the common descent direction of all clients (Hu et al., IEEE TNSE 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Aggregator, Method, Server, Tree, Update, register, setting
from fedshift.methods.shared.simplex import min_norm_near
from fedshift.methods.shared.updates import moved_by, updates_gram


def common_shares(inner: Tensor, p: Tensor, eps: float) -> Tensor:
    """The c (n,) for which sum_k c_k v_k = sum_k lam_k v_k / |v_k|, the shortest such vector.

    ``inner`` (n, n) are the inner products of the updates v_k and lam is on the simplex with
    |lam_k - p_k| <= eps. An update of zero has no direction: it is left out, the other p_k scaled.
    """
    length = inner.diag().clamp(min=0).sqrt()  # (n,)
    moved = length > 0
    shares = torch.zeros_like(length)
    if not bool(moved.any()):
        return shares
    units = inner[moved][:, moved] / torch.outer(length[moved], length[moved])
    centre = p[moved] / p[moved].sum()
    lam = torch.from_numpy(min_norm_near(units.numpy(), centre.numpy(), eps))
    shares[moved] = lam / length[moved]
    return shares


@dataclass(frozen=True)
class CommonDescent(Aggregator):
    """theta + sum_k lam_k d_k, d_k = v_k / |v_k|, lam = argmin |sum_k lam_k d_k|^2 near p.

    v_k = theta_k - theta over all parameters, lam on the simplex with |lam_k - p_k| <= eps, p_k the
    scenario's client weights. Away from the limits the step has the same inner product with every
    d_k that has weight. Its length is at most one whatever the clients' steps were, times the
    server's rate; buffers are averaged with p_k.
    """

    eps: float = setting(0.1, "largest distance of a weight from the client's own", low=0.0, high=1)
    needs_individual_updates = True

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The server of Algorithm 1."""
        shares = common_shares(updates_gram(server, updates), weights, self.eps)
        return moved_by(server, updates, shares)


@register("fedmgda-plus", paper="Hu et al., IEEE TNSE 2022", group="aggregation")
def fedmgda_plus() -> Method:
    """The shortest combination of the clients' normalised updates.

    Every client is an objective of its own: the server looks for a direction that none of them
    opposes, the shortest vector in the hull of the clients' directions. Weights stay within eps of
    FedAvg's, and normalised updates keep a client from winning by the length of its step.

    Use it: when no client should pay for the others, and none should dominate by large updates.
    Not for: many clients that agree on little, for which the step becomes short.
    Equations: Algorithm 1: `CommonDescent`, `common_shares`; its program: `min_norm_near`.
    """
    return Method(aggregate=CommonDescent())
