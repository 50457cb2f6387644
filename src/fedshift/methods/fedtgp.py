"""FedTGP: the server trains prototypes that keep classes apart (Zhang et al., AAAI 2024)."""

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
    Net,
    Part,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    register,
    setting,
    tree,
)
from fedshift.methods.shared.class_means import means_payload, means_spec, pool_means, shares_of
from fedshift.methods.shared.prototypes import (
    margin_scores,
    neighbour_gaps,
    prototype_method,
    pull,
)
from fedshift.methods.shared.server_training import Passes, fit, held_net, kept_net


def adaptive_margin(means: Tensor, most: float) -> Tensor:
    """The margin delta = min(max_c min_c' |m_c - m_c'|, most), of class means (M, D)."""
    gaps = neighbour_gaps(means)
    return gaps.max().clamp(max=most) if len(gaps) else means.new_zeros(())


def prototype_net(classes: int, width: int) -> Net:
    """P = W2 relu(W1 E): an embedding (K, D) and two layers; its input is the identity (K, K)."""
    modules: dict[str, nn.Module] = {
        "embedding": nn.Linear(classes, width, bias=False),
        "hidden": nn.Sequential(nn.Linear(width, width), nn.ReLU()),
        "out": nn.Linear(width, width),
        "head": nn.Identity(),
    }
    nn.init.normal_(modules["embedding"].weight)  # type: ignore[arg-type]
    stages = {"prototypes": ("embedding", "hidden", "out")}
    return Net(modules, stages=stages, head="head", shape=(classes,), classes=classes)


@dataclass(frozen=True)
class TrainablePrototypes(Part):
    """lam * |z - P_y|^2 / D at clients; at the server P minimises a contrast with a margin.

    The server's loss is the cross-entropy of -(|q - P_c| + delta [c = y]) over the clients' class
    means q. A client sends its M class means (M, D) and their classes; the server keeps the small
    net that makes P and sends P (K, D). There is no term in round 1.
    """

    lam: float = setting(10.0, "weight of the squared distance", low=0.0)
    server_epochs: int = setting(100, "passes over the clients' means at the server", low=0)
    server_batch: int = setting(10, "means per step at the server", low=1)
    most: float = setting(100.0, "largest margin", low=0.0)
    objectives = frozenset({"classification"})
    shares = "class means of features, and which classes a client holds"
    needs_individual_updates = True

    def uploads(self, model: ModelSpec) -> Uploads:
        """Means (M, D) and classes (M,) of the M classes that a client holds."""
        return {"train": means_spec(model)}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The pull to the trained prototypes."""
        told = client.payload(self)
        if not told or not self.lam:
            return None
        shares = shares_of(step.y, client.classes)
        return self.lam * pull(step.out.features, shares, told["prototypes"], told["known"])

    def finish(self, client: Client) -> Tree:
        """Class means of the trained net."""
        return means_payload(client)

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Train P on this round's means; it starts where the last round left it."""
        told = [tree.under(self.name, u.payload) for u in updates]
        means, owners = (torch.cat([t[key] for t in told]) for key in ("means", "owners"))
        pooled, known = pool_means(told, server.net.classes, by_count=False)
        margin = adaptive_margin(pooled[known], self.most)
        net = held_net(server, self.name, lambda: prototype_net(server.net.classes, means.shape[1]))
        inputs = torch.eye(net.classes)

        def loss(step: Step) -> Tensor:
            shares = shares_of(step.y, net.classes)
            scores = margin_scores(step.batch.x, shares, step.out.features, margin)
            return F.cross_entropy(scores, step.y)

        lr = server.scenario.optimisation(server.round).lr
        passes = Passes(self.server_epochs, self.server_batch, lr)
        fit(server, self.name, net, (means, owners), passes, (lambda _: net(inputs), loss))
        with torch.no_grad():
            made = net(inputs).features
        server.state[self.name] = kept_net(net) | {
            "prototypes": made,
            "known": torch.ones(net.classes, dtype=torch.bool),
        }

    def send(self, server: Server, client: str) -> Tree:
        """The prototypes of the round before; none in round 1."""
        return tree.pick(server.state[self.name], ("prototypes", "known"))


@register("fedtgp", paper="Zhang et al., AAAI 2024", group="prototypes")
def fedtgp(share_model: bool = True, classifier: str = "head") -> Method:
    """FedAvg with features pulled to prototypes that the server trains.

    The server does not average the clients' class means but trains one prototype per class on them,
    with a contrast that pushes the prototypes of different classes apart by an adaptive margin.

    Use it: averaged class means would lie close together because the sites' features differ.
    Not for: federations with many classes and few sites, whose means are too few to train on.
    Equations: server contrast: `margin_scores`; margin: `adaptive_margin`; client term: `pull`.
    """
    return prototype_method(TrainablePrototypes(), share_model=share_model, classifier=classifier)
