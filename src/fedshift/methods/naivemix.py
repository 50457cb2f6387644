"""NaiveMix: mixup with means of other clients' samples (Yoon et al., ICLR 2021, Section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    Method,
    ModelSpec,
    Part,
    PayloadSpec,
    Server,
    Size,
    Tree,
    Update,
    Uploads,
    register,
    setting,
)
from fedshift.methods.shared.pool import kept_by_client, of_others, require_part
from fedshift.methods.shared.targets import soft_targets


def group_means(x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Means of ``size`` consecutive rows of ``x`` (n, *shape) and ``y`` (n, K); a rest is left out.

    Fewer rows than ``size`` make one mean.
    """
    size = min(size, len(x))
    kept = len(x) // size * size
    return x[:kept].unflatten(0, (-1, size)).mean(1), y[:kept].unflatten(0, (-1, size)).mean(1)


@dataclass(frozen=True)
class MeanPool(Part):
    """Means of M training samples of every client, gathered once and sent to all; adds no loss.

    On enrolment a client uploads at most ``per_client`` means of M inputs and of their labels, each
    sample in one mean at most. A message to a client carries ``per_round`` means of the others,
    drawn anew each round.
    """

    objectives = frozenset({"classification"})

    group: int = setting(5, "M: samples in one mean", low=2)
    per_client: int = setting(32, "means that a client sends at most", low=1)
    per_round: int = setting(16, "means in a message to a client; 0: all", low=0)

    @property
    def shares(self) -> str:  # type: ignore[override]
        """Means of inputs and labels, once."""
        return f"up to {self.per_client} means of {self.group} training inputs and labels, once"

    def uploads(self, model: ModelSpec) -> Uploads:
        """Means of inputs (n, *shape) and of labels (n, K)."""
        n = Size("n", most=self.per_client)
        labels = PayloadSpec((n, model.classes), low=0.0, high=1.0 + 1e-6)
        return {"enrol": {"x": PayloadSpec((n, *model.net.shape)), "y": labels}}

    def enrol(self, client: Client) -> Tree:
        """Means over a random order of the training samples."""
        generator = client.generator(self.name)
        rows = torch.randperm(client.examples, generator=generator)
        x, y = client.site.data.train.take(rows[: self.group * self.per_client])
        means, labels = group_means(x, soft_targets(y, client.classes), self.group)
        return {"x": means, "y": labels}

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Keep every client's means."""
        server.state[self.name] = kept_by_client(self.name, enrolments)

    def send(self, server: Server, client: str) -> Tree:
        """Means of the other clients; a client that is alone gets its own."""
        held = of_others(server.state[self.name], ("x", "y"), client)
        if not self.per_round or len(held["x"]) <= self.per_round:
            return held
        order = torch.randperm(len(held["x"]), generator=server.generator(self.name))
        return {key: rows[order[: self.per_round]] for key, rows in held.items()}


NAME = MeanPool().name


def draw_mean(client: Client, part: str) -> tuple[Tensor, Tensor]:
    """One mean of the pool, an input (*shape) and its label (K,), drawn by ``part``."""
    x, y = client.inbox[f"{NAME}/x"], client.inbox[f"{NAME}/y"]
    row = torch.randint(len(x), (), generator=client.generator(part))
    return x[row], y[row]


@dataclass(frozen=True)
class MeanMixing(Part):
    """Eq. 2: x <- (1 - lam) x + lam xbar and y <- (1 - lam) y + lam ybar, one mean per batch."""

    objectives = frozenset({"classification"})

    lam: float = setting(0.05, "share of the mean in a sample", low=0.0, high=1.0)

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Raise if there are no means."""
        require_part(self, MeanPool, server)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Mix the batch with one mean of another client."""
        x, y = draw_mean(client, self.name)
        own = soft_targets(batch.y, client.classes)
        return batch.replace(
            x=torch.lerp(batch.x, x.expand_as(batch.x), self.lam),
            y=torch.lerp(own, y.expand_as(own), self.lam),
        )


@register("naivemix", paper="Yoon et al., ICLR 2021", group="augmentation")
def naivemix() -> Method:
    """Mixup with means of a few samples of other clients.

    Each client publishes means of five samples and their labels. All clients mix them into their
    own batches, as mixup would with samples of the other clients, which nobody may see.

    Use it: under label or domain skew, if means of a few samples may leave a site.
    Not for: data of which a mean of five samples already tells too much; FedMix mixes more mildly.
    Equations: Eq. 2: `MeanMixing.batch`; Algorithm 1, line 3: `group_means`, `MeanPool.enrol`.
    """
    return Method((MeanPool(), MeanMixing()))
