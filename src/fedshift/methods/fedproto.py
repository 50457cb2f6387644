"""FedProto: features near the mean of their class over all clients (Tan et al., AAAI 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

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
    setting,
    tree,
)
from fedshift.methods.shared.class_means import means_payload, means_spec, pool_means, shares_of
from fedshift.methods.shared.prototypes import keep_known, prototype_method, pull


@dataclass(frozen=True)
class GlobalPrototypes(Part):
    """lam * |z - P_y|^2 / D, where P_c is the mean of class c over all clients (Eqs. 6 to 8).

    A client sends its M class means (M, D) after training, their classes and sample counts; the
    server sends P (K, D) and which classes are known. There is no term in round 1. A class that no
    participant of a round holds keeps its prototype.
    """

    lam: float = setting(1.0, "weight of the squared distance", low=0.0)
    uniform: bool = setting(False, "every client's mean counts the same (released code)")
    objectives = frozenset({"classification"})
    shares = "class means of features, and how many samples of each class a client holds"

    def uploads(self, model: ModelSpec) -> Uploads:
        """Means (M, D), classes (M,) and counts (M,) of the M classes that a client holds."""
        return {"train": means_spec(model, counts=not self.uniform)}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Eqs. 7 and 8, the regulariser."""
        told = client.payload(self)
        if not told or not self.lam:
            return None
        shares = shares_of(step.y, client.classes)
        return self.lam * pull(step.out.features, shares, told["prototypes"], told["known"])

    def finish(self, client: Client) -> Tree:
        """Eq. 3: class means of the trained net."""
        return means_payload(client, counts=not self.uniform)

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Eq. 6: the mean over all samples of a class, or over clients (``uniform``)."""
        told = [tree.under(self.name, u.payload) for u in updates]
        pooled = pool_means(told, server.net.classes, by_count=not self.uniform)
        server.state[self.name] = keep_known(server.state[self.name], *pooled)

    def send(self, server: Server, client: str) -> Tree:
        """The prototypes of the round before; none in round 1."""
        return server.state[self.name]


@register("fedproto", paper="Tan et al., AAAI 2022", group="prototypes")
def fedproto(share_model: bool = True, classifier: str = "head") -> Method:
    """FedAvg with features pulled to the mean of their class.

    Clients send the mean feature of each class, and the server averages the means of a class. A
    squared distance pulls every feature to the average of its class.

    Use it: sites hold the same classes and disagree about features, or cannot share weights at all.
    Not for: classes that look different at each site, which one mean per class would blur.
    Equations: Eq. 3: `class_means`; Eq. 6: `pool_means`; Eqs. 7 and 8: `pull`.
    """
    return prototype_method(GlobalPrototypes(), share_model=share_model, classifier=classifier)
