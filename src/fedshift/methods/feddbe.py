"""FedDBE: a site's own bias of the features, and a common mean of them (Zhang et al., 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedshift import (
    Client,
    Method,
    ModelSpec,
    Neck,
    Net,
    Part,
    PayloadSpec,
    Scope,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    call_frozen,
    register,
    setting,
)
from fedshift.methods.shared.branch import trained_keys
from fedshift.methods.shared.tuning import tuned

BIAS = "personal-bias"


class AddedBias(Neck):
    """z + b; the features z before it are given too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Features (B, D) to features (B, D)."""
        z = maps.flatten(1)
        return z + self.bias, {"before": z}


class PersonalBias(Part):
    """The head reads z + b_k: z are the shared body's features, b_k (D,) is private, first zero."""

    alias = BIAS

    def build(self, net: Net) -> None:
        """Insert it before the head."""
        width = net.shapes()["features"][0]
        net.insert(self.name, AddedBias(width), after=list(net.stages)[-1])

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """The bias never leaves a site."""
        return {f"extra.{BIAS}.bias": Scope.PRIVATE}


def mean_regularisation(mean: Tensor, consensus: Tensor) -> Tensor:
    """Mean over the D dimensions of the squared difference of two means (D,)."""
    return (mean - consensus).square().mean()


@dataclass(frozen=True)
class MeanConsensus(Part):
    """kappa * |m - c|^2 / D: m is the running mean of a site's features, c the one of all sites.

    m <- (1 - momentum) m + momentum * (the batch's mean); it starts with the first batch, and only
    the batch's mean has a gradient. Each site trains the initial model for one epoch before round
    1 and sends the mean (D,) of its features, once; c is their mean by examples, and never changes.
    """

    kappa: float = setting(50.0, "weight of the squared difference", low=0.0)
    momentum: float = setting(1.0, "share of the newest batch in the mean", low=0.0, high=1.0)
    halved: bool = setting(False, "half of the squared difference, as released")
    shares = "the mean of the features of its training samples, once"

    def uploads(self, model: ModelSpec) -> Uploads:
        """One vector (D,), at enrolment."""
        return {"enrol": {"mean": PayloadSpec((model.features,))}}

    def enrol(self, client: Client) -> Tree:
        """The mean feature (D,) after one epoch of plain training, without a bias."""
        keys = trained_keys(client.net) - {f"extra.{BIAS}.bias"}
        entries = tuned(client, keys, 1, client.generator(self.name))
        chunks = client.site.data.train.chunks()
        sums = [call_frozen(client.net, entries, x).features.sum(0) for x, _ in chunks]
        return {"mean": torch.stack(sums).sum(0) / client.examples}

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """The mean over all sites' samples."""
        n = torch.tensor([u.examples for u in enrolments], dtype=torch.float64)
        means = torch.stack([u.payload[f"{self.name}/mean"] for u in enrolments])  # (n, D)
        server.state[self.name] = {"mean": ((n / n.sum()) @ means.double()).to(means.dtype)}

    def send(self, server: Server, client: str) -> Tree:
        """The consensus (D,)."""
        return server.state[self.name]

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The penalty on the shared features, before a personal bias is added."""
        if not self.kappa:
            return None
        z = step.out.aux.get(f"{BIAS}/before", step.out.features)
        now, kept = z.mean(0), client.scratch[self.name]
        if kept.get("index") != step.batch.index:  # a second forward of a batch counts once
            kept.update(index=step.batch.index, before=kept.get("mean", now.detach()))
        mean = torch.lerp(kept["before"], now, self.momentum)
        kept["mean"] = mean.detach()
        term = mean_regularisation(mean, client.payload(self)["mean"])
        return self.kappa * (0.5 if self.halved else 1.0) * term


@register("feddbe", paper="Zhang et al., NeurIPS 2023", group="personal")
def feddbe() -> Method:
    """FedAvg with a private bias of the features and a common mean of them.

    What is peculiar to a site's features goes into a vector of its own that is added before the
    head. The mean of what the shared body computes is held at one value for all sites, so that the
    body itself does not learn the peculiarities.

    Use it: sites look different and share their classes, and a site can keep one small vector.
    Not for: sites that may not reveal the mean of their features, or a task without a shift of it.
    Equations: the bias memory: `PersonalBias`; the mean regulariser: `mean_regularisation`.
    """
    return Method((PersonalBias(), MeanConsensus()))
