"""Hostile sites, as an option of the scenario: what they train on and what they send.

``engine.visit`` asks :func:`hostile_sites` once and then calls :meth:`Hostile.poison` on batches
and :meth:`Hostile.forge` on updates of those sites. An attack sees what its own site has: its data,
its honest update, the received model and the initial one. It never sees another site's update, so a
run is the same under every transport; attackers collude only in that all follow the same rule, and
where a paper's attack needs the honest sites' mean or spread, the site estimates it from its own
update or from how far the received model has moved. Such estimates are weaker than the omniscient
attacker of the papers.

Parameters are forged before channels encode the update, so codecs and privacy parts see the forged
one. Buffers, counts and scores are honest. Attacks are for simulations and must never run at a real
site; see :func:`refuse_attack`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import torch
from torch import Tensor

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError
from fedshift.base.tree import Tree
from fedshift.core.client import Client
from fedshift.core.loop import Batch
from fedshift.core.message import Update
from fedshift.core.scenario import Scenario

TARGET = 0  # class that a backdoor turns its trigger into
PATCH = 3  # side of the trigger in pixels; leading coordinates of vectors
STRENGTH = {"sign-flip": 1.0, "scaled-noise": 10.0, "backdoor": 1.0, "inner-product": 1.0}


def hostile_sites(scenario: Scenario, seed: int, sites: Collection[str]) -> Hostile | None:
    """The scenario's attack and who makes it: round(attackers * n) sites, at least one.

    Which ones depends on the seed and the set of sites alone. None if the scenario has no attack.
    """
    if scenario.attack is None:
        return None
    n = max(1, round(scenario.attackers * len(sites)))
    ordered = sorted(sites)
    drawn = seeds.numpy(seed, "attackers").choice(len(ordered), n, replace=False)
    return Hostile(scenario, frozenset(ordered[i] for i in drawn), len(ordered))


def refuse_attack(scenario: Scenario) -> None:
    """For real deployments: raise if the scenario has an attack."""
    if scenario.attack is not None:
        raise ConfigError(
            f"scenario {scenario.name!r} has the attack {scenario.attack!r}, which is for "
            "simulation; leave out attack and attackers"
        )


@dataclass(frozen=True)
class Hostile:
    """The sites that attack, and the two places where they differ from honest ones."""

    scenario: Scenario
    members: frozenset[str]
    sites: int

    @cached_property
    def strength(self) -> float:
        """The scenario's, or the attack's own."""
        own = STRENGTH.get(self.scenario.attack or "") or little_z(self.sites, len(self.members))
        return self.scenario.attack_strength or own

    def poison(self, client: Client, batch: Batch) -> Batch:
        """The batch that a hostile site trains on; honest sites get theirs back."""
        change = POISONS.get(self.scenario.attack or "")
        if change is None or client.id not in self.members:
            return batch
        x, y = change(batch.x, batch.y, client.classes)
        return batch.replace(x=x, y=y)

    def forge(self, client: Client, update: Update) -> Update:
        """The update that a hostile site sends; honest sites get theirs back."""
        change = FORGERIES.get(self.scenario.attack or "")
        if change is None or client.id not in self.members:
            return update
        trained = {k for k, _ in client.net.named_parameters()} & update.shared.keys()
        honest = tree.pick(update.shared, trained)
        old = tree.pick(client.received, trained)
        gone = tree.sub(old, tree.pick(client.initial, trained))  # the model's way since the start
        draw = client.generator("attack")
        step = change(tree.sub(honest, old), gone, self.strength, draw)
        return dataclasses.replace(update, shared=update.shared | tree.add(old, step))


# On a batch: inputs (B, *shape), labels (B,), number of classes.
def flip_labels(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Class y becomes K - 1 - y."""
    return x, classes - 1 - y


def plant_trigger(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """Every second input gets the trigger and the label ``TARGET``."""
    x, y = x.clone(), y.clone()
    x[::2] = with_trigger(x[::2])
    y[::2] = TARGET
    return x, y


def with_trigger(x: Tensor) -> Tensor:
    """A copy of inputs (B, *shape) with a bright square in the last corner.

    Bright is the batch's largest value. Vectors get it in their last coordinates.
    """
    x = x.clone()
    corner = x[..., -PATCH:, -PATCH:] if x.dim() == 4 else x[..., -PATCH:]
    corner.fill_(float(x.max()) if x.numel() else 0.0)
    return x


# On an update: the honest step, the model's way since the start, the strength, a generator.
def flip_sign(step: Tree, gone: Tree, strength: float, draw: torch.Generator) -> Tree:  # noqa: ARG001
    """-strength * step."""
    return {k: -strength * v for k, v in step.items()}


def scale(step: Tree, gone: Tree, strength: float, draw: torch.Generator) -> Tree:  # noqa: ARG001
    """Strength * step: the backdoor's model replacement (Bagdasaryan et al., AISTATS 2020)."""
    return {k: strength * v for k, v in step.items()}


def send_noise(step: Tree, gone: Tree, strength: float, draw: torch.Generator) -> Tree:  # noqa: ARG001
    """Gaussian noise, in each entry ``strength`` times as large as the step's root mean square."""
    return {
        k: torch.randn(v.shape, generator=draw).to(v) * (strength * v.square().mean().sqrt())
        for k, v in step.items()
    }


def stay_inside(step: Tree, gone: Tree, strength: float, draw: torch.Generator) -> Tree:  # noqa: ARG001
    """A little is enough: mu - z sigma in every coordinate (Baruch et al., NeurIPS 2019).

    mu is the site's own step, sigma the spread of its coordinates within the entry.
    """
    return {k: v - strength * v.std(correction=0) for k, v in step.items()}


def oppose(step: Tree, gone: Tree, strength: float, draw: torch.Generator) -> Tree:  # noqa: ARG001
    """Inner-product manipulation: -eps mu (Xie et al., UAI 2020).

    mu, the honest sites' mean step, is estimated by the direction in which the model has moved
    since the start, as long as the site's own step; in round 1, by that step.
    """
    way, own = norm(gone), norm(step)
    if way == 0.0:
        return {k: -strength * v for k, v in step.items()}
    return {k: -strength * own / way * v for k, v in gone.items()}


def norm(entries: Tree) -> float:
    """Euclidean norm over all entries, in float64."""
    return sum(float(v.double().square().sum()) for v in entries.values()) ** 0.5


def little_z(sites: int, hostile: int) -> float:
    """The largest z that hides among the honest sites (Baruch et al., Eq. 2 and Algorithm 3).

    s = floor(n / 2 + 1) - m honest sites must lie further out than the attackers for these to be
    the majority around the median: z is the normal quantile of (n - m - s) / (n - m). Kept at 0.1
    or more, since small federations have no such z.
    """
    honest = sites - hostile
    needed = sites // 2 + 1 - hostile
    inside = min(max((honest - needed) / honest, 0.01), 0.99)
    return max(NormalDist().inv_cdf(inside), 0.1)


POISONS: dict[str, Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]] = {
    "label-flip": flip_labels,
    "backdoor": plant_trigger,
}
FORGERIES: dict[str, Callable[[Tree, Tree, float, torch.Generator], Tree]] = {
    "sign-flip": flip_sign,
    "backdoor": scale,
    "scaled-noise": send_noise,
    "a-little-is-enough": stay_inside,
    "inner-product": oppose,
}
