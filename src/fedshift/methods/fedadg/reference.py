"""Model, discriminator and generator, which move in turn on each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
    Named,
    Net,
    Optimisation,
    Output,
    Part,
    Phase,
    Player,
    Step,
    Tree,
    setting,
)
from fedshift.methods.fedadg.networks import (
    discriminator_loss,
    judge,
    new_discriminator,
    new_generator,
)
from fedshift.methods.shared.branch import closed, leaves
from fedshift.methods.shared.budget import visit_batches
from fedshift.methods.shared.targets import soft_targets


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
        """Add G."""
        net.extra[self.name] = new_generator(net.shapes()["features"][0], net.classes)

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
        return leaves(client.state[self.name])

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
        client.state[self.name] = closed(client.state[self.name])
        return {}
