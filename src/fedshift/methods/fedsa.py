"""FedSA: features and heads aligned with fixed semantic anchors (Zhou et al., AAAI 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Client,
    Method,
    ModelSpec,
    Part,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    register,
    seeds,
    setting,
    tree,
)
from fedshift.methods.shared.class_means import means_payload, means_spec, pool_means, shares_of
from fedshift.methods.shared.prototypes import (
    keep_known,
    margin_scores,
    neighbour_gaps,
    prototype_method,
    pull,
)


def random_anchors(classes: int, width: int) -> Tensor:
    """A (K, D): standard normal rows through two random layers with BatchNorm and ReLU.

    The batch is all classes at once. Draws from torch's global generator: seed it before.
    """
    layers = [(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(2)]
    with torch.no_grad():
        out: Tensor = nn.Sequential(*(one for layer in layers for one in layer))(
            torch.randn(classes, width)
        )
    return out


def mean_gap(means: Tensor) -> Tensor:
    """Mean distance of each row of (M, D) to the nearest other; 0 of a single one."""
    gaps = neighbour_gaps(means)
    return gaps.mean() if len(gaps) else means.new_zeros(())


@dataclass(frozen=True)
class SemanticAnchors(Part):
    """lam |z - A_y|^2 / D + mcl CE(-(|z - A_c| + gap [c = y]), y) + cc CE(h(A), 1..K).

    gap is the larger of the anchors' mean distance to the nearest other anchor and the same of the
    client's class means after its last visit. The server makes the anchors A (K, D) from the run's
    seed and sends them; a client sends its M class means (M, D) and their classes.
    After each round A_c <- ema A_c + (1 - ema) g_c, with g_c the mean of class c over clients.
    """

    lam: float = setting(1.0, "weight of the squared distance", low=0.0)
    mcl: float = setting(1.0, "weight of the contrast with a margin", low=0.0)
    cc: float = setting(1.0, "weight of the head's calibration on the anchors", low=0.0)
    ema: float = setting(0.9999, "share of its old value that an anchor keeps", low=0.0, high=1.0)
    objectives = frozenset({"classification"})
    shares = "class means of features, and which classes a client holds"

    def uploads(self, model: ModelSpec) -> Uploads:
        """Means (M, D) and classes (M,) of the M classes that a client holds."""
        return {"train": means_spec(model)}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The three terms; those of weight zero are left out."""
        anchors = client.payload(self)["anchors"]  # (K, D)
        z, shares = step.out.features, shares_of(step.y, client.classes)
        terms = []
        if self.lam:
            terms.append(self.lam * pull(z, shares, anchors, torch.ones(len(anchors))))
        if self.mcl:
            own = client.state[self.name].get("gap", torch.zeros(()))
            gap = torch.maximum(own, mean_gap(anchors))
            scores = margin_scores(z, shares, anchors, gap)
            terms.append(self.mcl * F.cross_entropy(scores, step.y))
        if self.cc:
            logits = client.net.head_module(anchors)
            terms.append(self.cc * F.cross_entropy(logits, torch.arange(len(anchors))))
        return torch.stack(terms).sum() if terms else None

    def finish(self, client: Client) -> Tree:
        """Class means of the trained net; the distance between them is kept for the next visit."""
        told = means_payload(client)
        client.state[self.name] = {"gap": mean_gap(told["means"])}
        return told

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """The mean of each class over clients, and a small step of the anchors to it."""
        told = [tree.under(self.name, u.payload) for u in updates]
        means, known = pool_means(told, server.net.classes, by_count=False)
        anchors = self._anchors(server)
        moved = self.ema * anchors + (1 - self.ema) * means
        kept = keep_known(tree.pick(server.state[self.name], ("prototypes", "known")), means, known)
        server.state[self.name] = kept | {"anchors": torch.where(known[:, None], moved, anchors)}

    def send(self, server: Server, client: str) -> Tree:
        """The anchors, from round 1."""
        return {"anchors": self._anchors(server)}

    def _anchors(self, server: Server) -> Tensor:
        """Those of the state, or at the start random ones of the run's seed."""
        held = server.state[self.name]
        if "anchors" in held:
            return held["anchors"]
        with seeds.fork(server.seed, self.name):
            return random_anchors(server.net.classes, server.model.features)


@register("fedsa", paper="Zhou et al., AAAI 2025", group="prototypes")
def fedsa(share_model: bool = True, classifier: str = "head") -> Method:
    """FedAvg with features and heads aligned with fixed random anchors.

    Every class has an anchor that is drawn once, so that no client's bias is in it. Features are
    pulled to the anchor of their class and kept from the others', and heads learn to tell them.

    Use it: sites differ so much in labels or features that the mean of their class means is biased.
    Not for: pretrained features, which random anchors would have to move far.
    Equations: anchors: `random_anchors`; terms: `SemanticAnchors.loss`; margin: `margin_scores`.
    """
    return prototype_method(SemanticAnchors(), share_model=share_model, classifier=classifier)
