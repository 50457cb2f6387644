"""Fusion weights: how much each client counts in the aggregate, layer by layer (CSAC, Fig. 7).

They are read off the models themselves, so that every aggregation rule can be looked at, whatever
it computes inside. An analysis may not call the rule once more: some weightings keep state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift.core.analysis import Analysis, register_analysis
from fedshift.core.message import Update
from fedshift.core.server import Server
from fedshift.data.federation import Federation
from fedshift.evaluate.layers import last_weights


@register_analysis("fusion-weights")
class FusionWeights(Analysis):
    """Weight of each client in the last layer of every stage, as "stage/client"."""

    title = "weight of each client, by layer"

    def measure(
        self,
        server: Server,
        updates: Sequence[Update],
        federation: Federation,  # noqa: ARG002
    ) -> dict[str, float]:
        """Weights c_h with aggregate = sum_h c_h G^h for the last layer of each stage.

        Layers that clients do not share are left out.
        """
        out: dict[str, float] = {}
        for stage, key in last_weights(server.net).items():
            if key in server.aggregated and all(key in u.shared for u in updates):
                found = combination([u.shared[key] for u in updates], server.aggregated[key])
                out |= {
                    f"{stage}/{u.client}": w for u, w in zip(updates, found.tolist(), strict=True)
                }
        return out


def combination(versions: Sequence[Tensor], merged: Tensor) -> Tensor:
    """Weights c (n,) that sum to one with merged nearest to sum_h c_h versions_h, least squares.

    Deviations from the mean are used on both sides: the models of a round differ by little, and
    their common part says nothing about the weights. Versions that are all alike count the same.

    >>> combination([torch.tensor([0.0, 0.0]), torch.tensor([4.0, 8.0])], torch.tensor([1.0, 2.0]))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    n = len(versions)
    rows = torch.stack([v.flatten() for v in versions]).double()  # (n, P)
    mean = rows.mean(0)  # (P,)
    apart = rows - mean
    gram = apart @ apart.T  # (n, n), of rank n - 1 at most
    wanted = apart @ (merged.flatten().double() - mean)  # (n,)
    weights = torch.linalg.pinv(gram, hermitian=True) @ wanted
    return weights + (1 - weights.sum()) / n
