"""Krum and Multi-Krum: updates with near neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Method,
    Server,
    Tree,
    Update,
    register,
    setting,
    tree,
    weighted_mean,
)
from fedshift.methods.robust.rule import Robust, part_of
from fedshift.methods.shared.updates import updates_gram


@dataclass(frozen=True)
class Krum(Robust):
    """The update nearest to its n - f - 2 nearest ones (Blanchard et al., NeurIPS 2017).

    s(k) = sum of the squared distances from update k to the n - f - 2 closest others; the update of
    the smallest s is taken as it is, its buffers with it. f = ceil(attackers * n). The theorem
    needs n >= 2 f + 3; below that the rule still runs, with one neighbour at least.
    """

    min_clients = 3
    attackers: float = setting(0.2, "fraction of sites that may attack", low=0.0, high=0.5)

    def chosen(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Positions of the updates that are used, in the order of ``updates``."""
        scores = krum_scores(updates_gram(server, updates), part_of(self.attackers, len(updates)))
        return scores.argsort(stable=True)[: self.kept(len(updates))].sort().values

    def kept(self, n: int) -> int:
        """How many of n updates are used."""
        return 1

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tree:
        """The mean of the chosen updates, buffers included; the optimiser sees parameters only."""
        own = [updates[i].shared for i in self.chosen(server, updates).tolist()]
        merged = weighted_mean(own, torch.full((len(own),), 1 / len(own), dtype=torch.float64))
        new = self.optimiser(server, tree.pick(merged, server.parameters))
        return {k: new.get(k, merged.get(k, v)) for k, v in server.shared.items()}


class MultiKrum(Krum):
    """The mean of the n - f updates with the smallest scores of Krum."""

    def kept(self, n: int) -> int:
        """All but as many as may attack."""
        return max(1, n - part_of(self.attackers, n))


def krum_scores(gram: Tensor, f: int) -> Tensor:
    """s(k) of every update (n,), from the inner products (n, n) and f suspected attackers."""
    squares = gram.diag()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0)  # (n, n), squared
    distances.fill_diagonal_(math.inf)
    near = max(1, len(gram) - f - 2)
    return distances.sort(dim=1).values[:, :near].sum(dim=1)


@register("krum", paper="Blanchard et al., NeurIPS 2017", group="aggregation")
def krum() -> Method:
    """The one update that has the nearest neighbours.

    The server takes the single update whose nearest others are closest to it, and drops all the
    rest.

    Use it: safety against few hostile sites outweighs accuracy, and the sites are alike.
    Not for: several domains: it keeps one site, hence one domain.
    Equations: Sec. 4: `krum_scores`, `Krum.chosen`.
    """
    return Method(aggregate=Krum())


@register("multi-krum", paper="Blanchard et al., NeurIPS 2017", group="aggregation")
def multi_krum() -> Method:
    """The mean of the updates that have near neighbours.

    As Krum, but all updates except as many as may attack are averaged, those with the best scores.

    Use it: hostile sites send updates that are far from the others; it keeps more of the honest
    ones than Krum.
    Not for: domains that are rare among the sites, which look like attackers.
    Equations: Sec. 4: `krum_scores`, `MultiKrum.kept`.
    """
    return Method(aggregate=MultiKrum())
