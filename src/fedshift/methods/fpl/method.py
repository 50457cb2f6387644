"""Class means up, cluster prototypes down, and both terms at the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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
from fedshift.data.samples import split_rows
from fedshift.methods.fpl.prototypes import cluster_prototypes, consistency, contrast
from fedshift.methods.shared.class_means import class_means, features_of, means_spec, shares_of


@dataclass(frozen=True)
class ClusterPrototypes(Part):
    """lam_contrast * contrast + lam_consistency * consistency with all clients' class means.

    A client uploads its class means (M, D) after training and which M classes it holds; the server
    sends the cluster prototypes (P, D) and their classes, made of the last round's participants. So
    no term is added in round 1. Means are taken in eval mode after training; the authors' code
    averages train-mode features over the last epoch, while weights change: ``train_pass``.
    """

    objectives = frozenset({"classification"})

    tau: float = setting(0.02, "temperature of the contrast", low=1e-6)
    lam_contrast: float = setting(1.0, "weight of the contrast", low=0.0)
    lam_consistency: float = setting(1.0, "weight of the squared distance", low=0.0)
    train_pass: bool = setting(False, "means of the last epoch's train-mode features")
    summed: bool = setting(False, "squared distance summed over dimensions, not averaged")
    shares = "class means of features, and which classes a client holds"
    needs_individual_updates = True

    def uploads(self, model: ModelSpec) -> Uploads:
        """Means (M, D) and classes (M,) of the M classes that a client holds."""
        return {"train": means_spec(model)}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Both terms; under ``train_pass`` the step's features are also stored."""
        z, shares = step.out.features, shares_of(step.y, client.classes)
        if self.train_pass:
            self._note(client, step.batch.index, z, shares)
        payload = client.payload(self)
        if not payload:
            return None
        known = (payload["prototypes"], payload["owners"])
        dimensions = z.shape[1] if self.summed else 1
        terms = []
        if self.lam_contrast:
            terms.append(self.lam_contrast * contrast(z, shares, *known, self.tau))
        if self.lam_consistency:
            terms.append(self.lam_consistency * dimensions * consistency(z, shares, *known))
        return torch.stack(terms).sum() if terms else None

    def _note(self, client: Client, index: int, z: Tensor, shares: Tensor) -> None:
        """Store the features of a batch; each epoch overwrites the previous one."""
        slot = index % len(split_rows(torch.arange(client.examples), client.scenario.batch_size))
        client.state[self.name] |= {f"z/{slot}": z.detach(), f"shares/{slot}": shares}

    def finish(self, client: Client) -> Tree:
        """Send the client's class means; no state is kept."""
        noted = client.state.pop(self.name, {})
        if noted:
            z = torch.cat(list(tree.under("z", noted).values()))
            shares = torch.cat(list(tree.under("shares", noted).values()))
        else:
            z, shares = features_of(client)
        means, owners = class_means(z, shares)
        return {"means": means, "owners": owners}

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Cluster the participants' means, class by class."""
        told = [tree.under(self.name, u.payload) for u in updates]
        means, owners = (torch.cat([t[key] for t in told]) for key in ("means", "owners"))
        prototypes, owners = cluster_prototypes(means, owners)
        server.state[self.name] = {"prototypes": prototypes, "owners": owners}

    def send(self, server: Server, client: str) -> Tree:
        """The cluster prototypes of the round before; none in round 1."""
        return server.state[self.name]


@register("fpl", paper="Huang et al., CVPR 2023", group="prototypes")
def fpl() -> Method:
    """Features are pulled to cluster prototypes of their class.

    Clients send the mean feature of each class, the server clusters the means of a class over
    clients so that large domains do not dominate, and local features are contrasted with these
    prototypes and drawn to their mean.

    Use it: one model for several domains is wanted, class means may leave the sites, and there are
    at least four clients.
    Not for: sites that may not share class means; regression; fewer than four clients make one
    cluster per class.
    Equations: cluster prototypes: `cluster_prototypes`; contrast: `contrast`; consistency:
    `consistency`; class means: `class_means`.
    """
    return Method((ClusterPrototypes(),))
