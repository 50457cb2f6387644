"""FedADG: features moved to a generated distribution, class by class (Zhang et al., 2021).

Three players move on each batch. The discriminator D of a client learns to tell generated features
(1) from its own (0); body and head learn their task and to be taken for generated ones; the
generator G learns to be taken for features. All clients share G, so their features meet there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
    Mean,
    Method,
    Named,
    Net,
    Optimisation,
    Output,
    Part,
    Phase,
    Player,
    Step,
    Tree,
    Uniform,
    register,
    setting,
)
from fedshift.methods.shared.budget import visit_batches
from fedshift.methods.shared.targets import soft_targets


def new_discriminator(inputs: int, projected: int, generator: torch.Generator) -> Tree:
    """A fixed random projection of norm 1, and two layers as wide, drawn as torch draws them."""
    out: Tree = {"projection": torch.randn(projected, inputs, generator=generator)}
    out["projection"] /= out["projection"].norm()
    for layer, size in (("first", projected), ("last", 1)):
        for name, shape in (("weight", (size, projected)), ("bias", (size,))):
            drawn = torch.empty(shape).uniform_(generator=generator)
            out[f"{layer}/{name}"] = (2 * drawn - 1) * projected**-0.5
    return out


def judge(entries: Mapping[str, Tensor], z: Tensor, y: Tensor) -> Tensor:
    """D(z, y) in (0, 1), (B,), from features (B, D) and scaled labels (B, K)."""
    seen = torch.cat([z, y], 1) @ entries["projection"].T
    hidden = F.leaky_relu(F.linear(seen, entries["first/weight"], entries["first/bias"]))
    return F.linear(hidden, entries["last/weight"], entries["last/bias"]).flatten().sigmoid()


def discriminator_loss(generated: Tensor, own: Tensor) -> Tensor:
    """D's objective, mean of (1 - D(G))^2 + D(F(x))^2, from its answers (B,)."""
    return ((1 - generated).square() + own.square()).mean()


@dataclass(frozen=True)
class GeneratedReference(Part):
    """Body and head: alpha CE + (1 - alpha) (1 - D(F(x)))^2; G: D(G)^2; D: `discriminator_loss`.

    G(noise, y), D/2 + K -> D -> D, is shared and averaged with the model. D is private and stays in
    the client's state, a random projection and two layers. A first share of the visit trains the
    task alone. Nothing but the model and G is sent.
    """

    objectives = frozenset({"classification"})

    alpha: float = setting(0.85, "weight of the task against the adversary", low=0.0, high=1.0)
    warm_up: float = setting(0.3, "share of the visit for the task alone", low=0.0, high=1.0)
    smoothing: float = setting(0.1, "label smoothing of the task", low=0.0, high=1.0)
    rate: float = setting(0.7, "learning rate of D and G, by the model's", low=0.0)
    label_scale: float = setting(0.7, "height of the one-hot labels that D and G see", low=0.0)
    projected: int = setting(0, "width of D; 0: a quarter of the features'", low=0)

    def build(self, net: Net) -> None:
        """Add G, two layers that end in a ReLU as most features do."""
        d = net.shapes()["features"][0]
        first, last = nn.Linear(max(1, d // 2) + net.classes, d), nn.Linear(d, d)
        net.extra[self.name] = nn.Sequential(first, nn.LeakyReLU(), last, nn.ReLU())

    def begin(self, client: Client) -> None:
        """Make D trainable; drawn at the first visit."""
        kept = client.state[self.name]
        if not kept:
            d = client.net.shapes()["features"][0]
            width, generator = self.projected or max(1, d // 4), client.generator(self.name)
            kept = new_discriminator(d + client.classes, width, generator)
        client.state[self.name] = {
            k: v.clone() if k == "projection" else nn.Parameter(v.clone()) for k, v in kept.items()
        }

    def phases(self, client: Client) -> Sequence[Phase]:
        """The task alone, then the three players, together as long as the scenario's budget."""

        def slower(chosen: Optimisation) -> Optimisation:
            return replace(chosen, lr=self.rate * chosen.lr)

        alone = Player("warm-up", self._model)
        d = Player("discriminator", self._discriminator, self._look, self._tell_apart, slower)
        g = Player("generator", self._generator, self._generate, self._imitate, slower)
        all_three = (d, Player("model", self._model), g)
        total = visit_batches(client)
        first = round(self.warm_up * total)
        if first in (0, total):
            return (Phase(all_three if first == 0 else (alone,)),)
        return (Phase((alone,), steps=first), Phase(all_three, steps=total - first))

    # the model
    def _model(self, client: Client) -> Named:
        own = {id(p) for p in client.net.extra[self.name].parameters()}
        return ((k, p) for k, p in client.net.named_parameters() if id(p) not in own)

    def task_loss(self, client: Client, step: Step) -> Tensor:
        """CE with smoothed labels, weighted by alpha once the adversary takes part."""
        weight = self.alpha if step.player == "model" else 1.0
        return weight * F.cross_entropy(step.out.logits, step.y, label_smoothing=self.smoothing)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """(1 - alpha) (1 - D(F(x)))^2."""
        if step.player != "model" or self.alpha == 1:
            return None
        own = judge(client.state[self.name], step.out.features, self._labels(client, step.batch))
        return (1 - self.alpha) * (1 - own).square().mean()

    # its opponents
    def _labels(self, client: Client, batch: Batch) -> Tensor:
        return self.label_scale * soft_targets(batch.y, client.classes)  # (B, K)

    def _discriminator(self, client: Client) -> Named:
        return ((k, v) for k, v in client.state[self.name].items() if isinstance(v, nn.Parameter))

    def _generator(self, client: Client) -> Named:
        return client.net.extra[self.name].named_parameters(f"extra.{self.name}")

    def _generate(self, client: Client, batch: Batch) -> Output:
        """G(noise, y); D and G see the same noise on a batch."""
        labels = self._labels(client, batch)
        if self.name not in batch.memo:
            width = client.net.get_parameter(f"extra.{self.name}.0.weight").shape[1]
            size = (len(batch.x), width - client.classes)
            batch.memo[self.name] = torch.rand(size, generator=client.generator(self.name))
        z = client.net.extra[self.name](torch.cat([batch.memo[self.name], labels], 1))  # (B, D)
        return Output(z, z)

    @torch.no_grad()
    def _look(self, client: Client, batch: Batch) -> Output:
        """What D compares: features of the net, in train mode, and generated ones as logits."""
        return Output(self._generate(client, batch).features, client.net(batch.x).features)

    def _tell_apart(self, client: Client, step: Step) -> dict[str, Tensor]:
        d, y = client.state[self.name], self._labels(client, step.batch)
        found = discriminator_loss(judge(d, step.out.logits, y), judge(d, step.out.features, y))
        return {f"{self.name}/discriminator": found}

    def _imitate(self, client: Client, step: Step) -> dict[str, Tensor]:
        y = self._labels(client, step.batch)
        found = judge(client.state[self.name], step.out.features, y).square().mean()
        return {f"{self.name}/generator": found}

    def finish(self, client: Client) -> Tree:
        """Keep D as plain tensors; nothing of it is sent."""
        client.state[self.name] = {k: v.detach() for k, v in client.state[self.name].items()}
        return {}


@register("fedadg", paper="Zhang et al., 2021", group="alignment")
def fedadg() -> Method:
    """Features moved to a shared generated distribution of each class.

    A generator that all clients average makes a reference distribution of features per class. Each
    client's own discriminator pushes its features there while it learns the task.

    Use it: for an unseen domain, if all classes occur at every client and rounds are long.
    Not for: short visits, in which three players have no time to settle.
    Equations: D: `judge` and `discriminator_loss`; body and head: `GeneratedReference.loss`.
    """
    return Method((GeneratedReference(),), Mean(Uniform()))
