"""FPL: contrast with clusters of class means of all clients (Huang et al., CVPR 2023).

Each round a client sends the mean feature of each of its classes. The server clusters the means of
one class over all clients by FINCH, so that every group of similar domains has one prototype of the
class, and large domains do not dominate. At the client, the contrast pulls a feature to all
prototypes of its class and away from those of other classes; the consistency term pulls it to the
mean of its class's prototypes. Labels are given as ``shares`` (B, K), the proportion of each class
in each sample: one-hot, or soft if a part such as mixup has mixed samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
from fedshift.methods.shared.class_means import class_means, features_of, means_spec, shares_of
from fedshift.methods.shared.finch import cluster_means, finch
from fedshift.methods.shared.prototypes import pull

NONE = -1e9  # score of a class without a prototype: far below any cosine / tau, but finite


def cluster_prototypes(means: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster prototypes (P, D) and their classes (P,), from the means (M, D) of all clients.

    ``owners`` (M,) is the class of each mean. FINCH clusters each class alone; within a cluster
    every client has the same weight.
    """
    classes = owners.unique()
    own = [means[owners == c] for c in classes]  # a loop over classes, once per round
    clusters = [cluster_means(points, finch(points)) for points in own]
    sizes = torch.tensor([len(c) for c in clusters])
    return torch.cat(clusters), classes.repeat_interleave(sizes)


def class_scores(s: Tensor, owners: Tensor, classes: int) -> Tensor:
    """Log of the sum of e^s over the prototypes of each class, (B, K), from ``s`` (B, P).

    The largest s of each class is subtracted before exp and added afterwards, so nothing overflows.
    """
    rows = owners.expand(len(s), -1)  # (B, P)
    top = s.new_full((len(s), classes), NONE).scatter_reduce(1, rows, s.detach(), "amax")
    sums = torch.zeros_like(top).index_add(1, owners, (s - top[:, owners]).exp())
    return top + sums.clamp(min=1.0).log()  # the sum is at least 1 for a class with prototypes


def contrast(z: Tensor, shares: Tensor, prototypes: Tensor, owners: Tensor, tau: float) -> Tensor:
    """-log sum_{p of class y} e^{s(z,p)/tau} / sum_p e^{s(z,p)/tau}, s the cosine.

    Cluster prototypes contrastive learning. Mean over the batch, ``z`` (B, D) and ``shares``
    (B, K); a sample whose class has no prototype adds nothing.
    """
    s = F.normalize(z) @ F.normalize(prototypes).T / tau  # (B, P)
    logs = class_scores(s, owners, shares.shape[1]).log_softmax(1)  # (B, K)
    known = torch.zeros(shares.shape[1], dtype=torch.bool).index_fill(0, owners, value=True)
    return -(shares * logs.masked_fill(~known, 0.0)).sum(1).mean()


def consistency(z: Tensor, shares: Tensor, prototypes: Tensor, owners: Tensor) -> Tensor:
    """Squared distance |z - u_y|^2 / D, u_c the mean of the cluster prototypes of class c.

    Unbiased prototypes consistent regularisation. Mean over the batch, ``z`` (B, D) and ``shares``
    (B, K); a sample whose class has no prototype adds nothing, a mixed one has a mixed target.
    """
    counts = torch.bincount(owners, minlength=shares.shape[1])  # (K,)
    sums = z.new_zeros(shares.shape[1], z.shape[1]).index_add(0, owners, prototypes)
    unbiased = sums / counts.clamp(min=1)[:, None]  # (K, D)
    return pull(z, shares, unbiased, counts > 0)


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
    """FedAvg with features pulled towards the cluster prototypes of their class."""
    return Method((ClusterPrototypes(),))
