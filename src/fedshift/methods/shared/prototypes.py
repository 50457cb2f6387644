"""One target per class that pulls features and may classify: FedProto, FedTGP, FedSA and FPL.

A part that makes prototypes keeps them in its server state as ``prototypes`` (K, D) and ``known``
(K,), which of them there are. The papers of the first three share no weights; benchmarks of domain
shift, which ask for one model, average them as well. :func:`prototype_method` makes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import ConfigError, Method, Net, Part, Scope, Scoring, Server, Tree, tree

FAR = 1e9  # distance of a class without a prototype
CLASSIFIERS = ("head", "prototype")


def pull(z: Tensor, shares: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Squared distance |z - p_y|^2 / D to the prototype of the class, mean over the batch.

    ``z`` (B, D), ``shares`` (B, K), ``prototypes`` (K, D), ``known`` (K,). A sample whose class has
    no prototype adds nothing, a mixed one has a mixed target.
    """
    held = shares * known  # (B, K)
    weight = held.sum(1)  # (B,)
    target = held @ prototypes / weight.clamp(min=1e-12)[:, None]  # (B, D)
    return (weight * (z - target).square().mean(1)).mean()


def distances(z: Tensor, prototypes: Tensor) -> Tensor:
    """|z_i - p_c| (B, K), without the rounding of the matrix form; the gradient at 0 is 0."""
    return torch.cdist(z, prototypes, compute_mode="donot_use_mm_for_euclid_dist")


def margin_scores(z: Tensor, shares: Tensor, prototypes: Tensor, margin: Tensor) -> Tensor:
    """Scores (B, K) of a contrast with a margin: -(|z_i - p_c| + margin [c = y_i])."""
    return -(distances(z, prototypes) + shares * margin)


def neighbour_gaps(means: Tensor) -> Tensor:
    """Distance (M,) of each of ``means`` (M, D) to the nearest other; none of a single one."""
    if len(means) < 2:
        return means.new_zeros(0)
    return distances(means, means).fill_diagonal_(torch.inf).amin(1)


def keep_known(before: Tree, prototypes: Tensor, known: Tensor) -> Tree:
    """New prototypes where there are any, those of an earlier round for the other classes."""
    if not before:
        return {"prototypes": prototypes, "known": known}
    kept = torch.where(known[:, None], prototypes, before["prototypes"])
    return {"prototypes": kept, "known": known | before["known"]}


class PrivateModels(Part):
    """All entries are private and each site is scored with its own: no weight is ever sent."""

    scored_at_sites = True  # there is no model of the server

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Every tensor."""
        return dict.fromkeys(net.state_dict(), Scope.PRIVATE)


@dataclass(frozen=True)
class NearestPrototype(Part):
    """A sample is of the class whose prototype is nearest to its features; before round 1 the head.

    ``of`` names the part that makes the prototypes, so it cannot stand in an expression by itself.
    """

    of: str

    def send_scoring(self, server: Server, client: str | None) -> Tree:
        """The prototypes (K, D), and which there are."""
        return tree.pick(server.state[self.of], ("prototypes", "known"))

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Negative distances (B, K)."""
        told = scoring.payload(self)
        if not told:
            return None
        far = distances(net(x).features, told["prototypes"])
        return -far.masked_fill(~told["known"], FAR)


def prototype_method(part: Part, *, share_model: bool, classifier: str) -> Method:
    """``part`` with averaged or private models, and the head or the prototypes to classify with."""
    if classifier not in CLASSIFIERS:
        raise ConfigError(f"classifier is {classifier!r}; it takes one of {', '.join(CLASSIFIERS)}")
    scored = (NearestPrototype(part.name),) if classifier == "prototype" else ()
    return Method((part, *(() if share_model else (PrivateModels(),)), *scored))
