"""FedPAC: features aligned by class, heads combined per client (Xu et al., ICLR 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedshift import (
    Client,
    Method,
    ModelSpec,
    Net,
    Part,
    PayloadSpec,
    Scope,
    Server,
    Tree,
    Update,
    Uploads,
    head_keys,
    register,
)
from fedshift.methods.fedproto import GlobalPrototypes
from fedshift.methods.fedrep import HeadThenBody
from fedshift.methods.shared.class_means import features_of
from fedshift.methods.shared.heads import require_uploaded_head
from fedshift.methods.shared.simplex import Matrix, min_norm_weights


def feature_moments(z: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """The mean H (K, D) of y z' over a client's samples, and the variance of that mean, ().

    From features ``z`` (n, D) and labels ``shares`` (n, K): row c of H is the share of class c
    times its mean feature. V = (E|z|^2 - |H|^2) / n, for one-hot labels.
    """
    h = shares.T @ z / len(z)  # (K, D)
    spread = z.square().sum(1).mean() - h.square().sum()
    return h, spread.clamp(min=0) / len(z)


def head_weights(h: Matrix, v: Matrix, own: int) -> Matrix:
    """Weights (n,) on the simplex with which client ``own`` combines the heads of all.

    argmin sum_j a_j^2 V_j + |sum_j a_j (H_own - H_j)|^2, from ``h`` (n, K D) and ``v`` (n,): the
    variance that averaging lowers, and the bias that other clients' features bring.
    """
    gaps = h[own] - h  # (n, K D)
    inner = np.diag(v) + gaps @ gaps.T
    largest = float(np.abs(inner).max())
    return min_norm_weights(inner / largest if largest else inner)


@dataclass(frozen=True)
class CollaborativeHeads(Part):
    """Each client's head is a convex combination of the participants' heads, made for it.

    Before training a client measures H (K, D) and V of the received body on its samples and sends
    them; after training it sends its head. The server solves n small quadratic programs.
    """

    objectives = frozenset({"classification"})
    needs_individual_updates = True
    shares = "mean features by class, times the share of the class, and their variance"

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """The head is personal: uploaded, and one for each client."""
        return dict.fromkeys(head_keys(net), Scope.PERSONAL)

    def check(self, model: ModelSpec) -> None:
        """Raise if another part keeps heads at the sites."""
        require_uploaded_head(self.name, model)

    def uploads(self, model: ModelSpec) -> Uploads:
        """H (K, D) and V, once per round."""
        moments = PayloadSpec((model.classes, model.features))
        return {"train": {"moments": moments, "variance": PayloadSpec((), low=0.0)}}

    def probe(self, client: Client) -> Tree:
        """Statistics of the received body, in eval mode."""
        h, v = feature_moments(*features_of(client))
        return {"moments": h, "variance": v}

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Algorithm 1: a combination of the trained heads for each participant."""
        told = [
            (u.payload[f"{self.name}/moments"], u.payload[f"{self.name}/variance"]) for u in updates
        ]
        h = torch.stack([m.flatten() for m, _ in told]).double().numpy()  # (n, K D)
        v = torch.stack([one for _, one in told]).double().numpy()  # (n,)
        keys = sorted(head_keys(server.net))
        heads = {k: torch.stack([u.personal[k] for u in updates]).double() for k in keys}
        out: dict[str, Tree] = {}
        for i, u in enumerate(updates):
            a = torch.from_numpy(head_weights(h, v, i))  # (n,)
            mixed = {k: torch.tensordot(a, heads[k], 1).to(u.personal[k].dtype) for k in keys}
            out[u.client] = dict(u.personal) | mixed
        return out


@register("fedpac", paper="Xu et al., ICLR 2023", group="personal")
def fedpac() -> Method:
    """Features aligned by class, and a combination of heads for each site.

    The head is trained first, then the body, whose features are pulled to the mean of their class
    over all sites. The server gives each site the combination of all heads whose expected error,
    estimated from feature statistics, is least for that site.

    Use it: a few sites with different classes or looks, some of them with little data.
    Not for: sites that may not reveal class statistics, or hundreds of sites in a round.
    Equations: the alignment: `pull`; the combination of heads: `head_weights`.
    """
    return Method((CollaborativeHeads(), HeadThenBody(head_epochs=1), GlobalPrototypes()))
