"""Personal layers mixed by similarity (Eq. 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedshift import Part, Scope, Server, Tree, Update, setting
from fedshift.methods.fdse.consensus import UNITS, grouped
from fedshift.methods.shared.simplex import Matrix


def similarity_weights(inner: Matrix, tau: float) -> Matrix:
    """Eq. 9: rows of ``softmax(cos(p_i, p_j) / tau)`` (n, n) from the Gram matrix of the p_k.

    A tensor of zeros has similarity 1 to itself and 0 to all others.
    """
    length = np.sqrt(np.diag(inner).clip(0))
    cosine = inner / np.maximum(np.outer(length, length), np.finfo(float).tiny)
    np.fill_diagonal(cosine, 1.0)
    powers = np.exp((cosine - cosine.max(1, keepdims=True)) / tau)
    rows: Matrix = powers / powers.sum(1, keepdims=True)
    return rows


@dataclass(frozen=True)
class SimilarityMixing(Part):
    """p_i <- sum_j softmax_j(cos(p_i, p_j) / tau) p_j for each layer's personal entries (Eq. 9).

    j runs over the participants; other clients keep their entries. For large tau this is the mean,
    for small tau each client keeps its own. Without this part each client keeps its own.
    """

    tau: float = setting(0.5, "temperature: small keeps what is one's own", low=1e-9)
    unit: str = setting(
        "submodule",
        "what one layer of Eq. 9 is: a whole DSE, a module of it; released: tensor",
        choices=("submodule", *UNITS),
    )
    needs_individual_updates = True

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Eq. 9, layer by layer."""
        out: dict[str, Tree] = {u.client: dict(u.personal) for u in updates}
        keys = server.keys(Scope.PERSONAL)
        for group in grouped((k for k in server.initial if k in keys), self.unit):
            held = {k: torch.stack([u.personal[k] for u in updates]).double() for k in group}
            flat = torch.cat([v.flatten(1) for v in held.values()], 1)  # (n, P)
            rows = torch.from_numpy(similarity_weights((flat @ flat.T).numpy(), self.tau))  # (n, n)
            for k, values in held.items():
                mixed = torch.tensordot(rows, values, 1).to(server.initial[k].dtype)  # (n, ...)
                for u, value in zip(updates, mixed, strict=True):
                    out[u.client][k] = value
        return out
