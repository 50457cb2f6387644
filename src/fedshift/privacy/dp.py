"""Differential privacy of a site: updates are clipped, and Gaussian noise hides any single one.

``methods.privacy`` registers the two parts, and the round calls their hooks. Under ``central-dp``
the sites send plain updates; the server clips each of them in ``decode`` and adds noise once, to
their sum, so the server must be trusted and every later hook sees only the noisy mean. Under
``local-dp`` each site clips and adds noise to its own update in ``encode``, before it leaves. No
data-derived number may leave what is trusted without noise: buffers stay private, and a payload of
another part is refused.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import (
    Ask,
    Channel,
    Client,
    ConfigError,
    Net,
    Scope,
    Server,
    Tree,
    Update,
    setting,
    tree,
)
from fedshift.core.server import RoundSpent
from fedshift.privacy.accountant import EVERYBODY, Sampling, composed, epsilon, require_library
from fedshift.privacy.masks import require_library as require_cryptography
from fedshift.privacy.noise import CELLS, Integers, discrete_gaussian


@dataclass(frozen=True)
class GaussianNoise(Channel, ABC):
    """Base of both kinds: clipping and noise; subclasses say where the noise is added.

    Buffers (BatchNorm statistics and counters) are private entries, so no statistic of the data
    leaves the site without noise, and noise does not spoil any.
    """

    clip: float = setting(1.0, "largest L2 norm of an update, over all trained entries", low=1e-12)
    noise: float = setting(1.0, "standard deviation of the noise, in units of clip", low=0.0)
    delta: float = setting(1e-5, "chance that epsilon does not hold", low=1e-300, high=0.5)
    randomness: str = setting(
        "seed",
        "seed: repeatable, whoever knows the seed can take the noise off; system: secret",
        choices=("seed", "system"),
    )
    gives_privacy = True

    def require(self, server: Server) -> None:
        """Raise before the first round if a library is not installed."""
        require_library()
        if self.secret:
            require_cryptography()

    @property
    def secret(self) -> bool:
        """Whether noise is drawn, and from a source that nobody can repeat."""
        return self.randomness == "system" and self.noise > 0

    def hidden(self, steps: Iterable[Tree], like: Tree) -> Tree:
        """Sum of the clipped steps plus secret noise, added as integers; float64.

        ``noise`` says why integers, and what the grid is.
        """
        grid = self.noise * self.clip / CELLS
        total = {k: np.zeros(v.shape, dtype=np.int64) for k, v in like.items()}
        for step in steps:
            for key, whole in on_grid(step, self.clip, grid).items():
                total[key] += whole
        drawn = discrete_gaussian(sum(v.size for v in total.values()))
        pieces = np.split(drawn, np.cumsum([v.size for v in total.values()])[:-1])
        return {
            k: (torch.from_numpy(v + z.reshape(v.shape)).double() * grid).to(like[k].device)
            for (k, v), z in zip(total.items(), pieces, strict=True)
        }

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Every entry that is not trained is private."""
        trained = {name for name, _ in net.named_parameters()}
        return dict.fromkeys(net.state_dict().keys() - trained, Scope.PRIVATE)

    @abstractmethod
    def privacy_spent(self, server: Server, visits: Mapping[str, int]) -> Mapping[str, Any]:
        """Epsilon so far and the settings, as JSON; depends on where the noise is added."""

    def promise(self, spent: float) -> dict[str, Any]:
        """The record for the ledger and the summary; epsilon is null if there is no bound."""
        return {
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": self.delta,
            "clip": self.clip,
            "noise": self.noise,
            "randomness": self.randomness,
        }


@dataclass(frozen=True)
class CentralDP(GaussianNoise):
    """theta + (sum_k min(1, C / |d_k|) d_k + sigma C N(0, I)) / n with d_k = theta_k - theta.

    The server is trusted; the guarantee covers the model that it publishes (McMahan et al., ICLR
    2018, Algorithm 1, with cohorts of fixed size). Every site has the same weight, however large.
    """

    neighbours: str = setting(
        "replace",
        "what one site may change: replace its data, or zero-out (full participation only)",
        choices=("replace", "zero-out"),
    )
    aggregate_only = True
    needs_individual_updates = True

    def require(self, server: Server) -> None:
        """Raise if a library is not installed, or there is no bound for the scenario's cohorts.

        With secret noise, cohorts are drawn from a secret, too: only then does sampling hide who
        took part.
        """
        super().require(server)
        sites = len(server.sites)
        cohort = server.scenario.cohort_size(sites)
        epsilon(
            self.noise,
            1,
            delta=self.delta,
            cohort=cohort,
            sites=sites,
            neighbours=self.neighbours,
        )
        if self.secret and cohort < sites:
            server.keep_cohorts_secret()

    def reject_reason(self, server: Server, update: Update) -> str:
        """Reject payload other than a codec's: the guarantee covers the weights only."""
        decoded = {channel.name for channel in server.method.channels}
        loose = next((k for k in update.payload if k.partition("/")[0] not in decoded), "")
        return f"payload {loose!r} is not covered by {self.name}" if loose else ""

    def decode_all(self, server: Server, updates: Sequence[Update], ask: Ask) -> Sequence[Update]:
        """One update in place of all: theta plus the noisy mean of the clipped steps."""
        theta = tree.pick(server.shared, server.parameters)
        steps = (tree.sub(theta_k(update, theta), theta) for update in updates)
        total = self.hidden(steps, theta) if self.secret else self._seeded(server, steps, theta)
        mean = {k: (v / len(updates)).to(theta[k].dtype) for k, v in total.items()}
        examples = sum(u.examples for u in updates)
        shared = tree.add(theta, mean)
        return [Update("everybody", "train", server.round, shared=shared, examples=examples)]

    def _seeded(self, server: Server, steps: Iterable[Tree], theta: Tree) -> Tree:
        total = tree.zeros_like(theta)
        for step in steps:
            total = tree.add(total, clipped(step, self.clip))
        generator = server.generator(self.name)
        scale = self.noise * self.clip
        return {k: v + scale * gauss(v, generator) for k, v in total.items()}

    def privacy_spent(self, server: Server, visits: Mapping[str, int]) -> Mapping[str, Any]:
        """Privacy spent by all models so far, those of interrupted rounds included."""
        sums = releases(server.spent)
        spent = composed(self.noise, sums, delta=self.delta, neighbours=self.neighbours)
        return self.promise(spent) | {
            "neighbours": self.neighbours,
            "releases": sum(sums.values()),
            "amplified": sum(sums.values()) - sums[EVERYBODY],
        }


@dataclass(frozen=True)
class LocalDP(GaussianNoise):
    """theta + min(1, C / |d_k|) d_k + sigma C N(0, I), before anything leaves the site.

    Nobody is trusted: the guarantee covers each update, hence all that is computed from it. The
    price is more noise in the mean: larger than the central one by the root of the number of sites.
    """

    @property
    def noise_at_site(self) -> float:
        """Noise of an update when it leaves the site, in units of clip; sites count it."""
        return self.noise

    def encode(self, client: Client, update: Update) -> Update:
        """Clip the update and add noise; the losses, which are not covered, are not sent."""
        if loose := sorted(update.payload) + sorted(update.personal):
            raise ConfigError(
                f"client {client.id}: {loose[0]} would leave without noise; {self.name} covers the "
                "shared weights only: leave out the part that sends it"
            )
        theta = tree.pick(client.received, update.shared)
        step = tree.sub(update.shared, theta)
        if self.secret:
            noisy = self.hidden([step], theta)
            shared = {k: (theta[k] + noisy[k]).to(theta[k].dtype) for k in update.shared}
        else:
            shared = self._seeded(client, step, theta)
        return dataclasses.replace(update, shared=shared, metrics={})

    def _seeded(self, client: Client, step: Tree, theta: Tree) -> Tree:
        step, generator = clipped(step, self.clip), client.generator(self.name)
        scale = self.noise * self.clip
        return {k: theta[k] + step[k] + scale * gauss(step[k], generator) for k in step}

    def privacy_spent(self, server: Server, visits: Mapping[str, int]) -> Mapping[str, Any]:
        """Privacy spent by the most visited site; participation is public, so it hides nothing."""
        most = max(visits.values(), default=0)
        spent = epsilon(self.noise, most, delta=self.delta)
        return self.promise(spent) | {"neighbours": "replace", "updates": most}


def releases(rounds: Sequence[RoundSpent]) -> Counter[Sampling]:
    """The sums that were or may have been released, by how their sites were drawn.

    A cohort amplifies privacy only where nobody but the server can know who was in it: it was drawn
    from a secret, all its sites replied (a missing one would tell something of the others), and
    the round was not repeated, which would show the same cohort twice. That is the view of somebody
    who sees models only; docs/privacy.md says what sites know beyond that.
    """
    out: Counter[Sampling] = Counter()
    for one in rounds:
        hidden = one.secret and one.complete and one.begun == 1 and one.cohort < one.sites
        out[Sampling(one.cohort, one.sites) if hidden else EVERYBODY] += one.begun
    return out


def theta_k(update: Update, keys: Mapping[str, Tensor]) -> Tree:
    """The trained entries of an update, in the order of ``keys``."""
    return {key: update.shared[key] for key in keys}


def clipped(step: Tree, clip: float) -> Tree:
    """``step`` scaled to an L2 norm of at most ``clip`` over all entries together."""
    norm = float(torch.nn.utils.get_total_norm(v.double() for v in step.values()))
    return step if norm <= clip else {k: v * (clip / norm) for k, v in step.items()}


def gauss(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the shape and dtype of ``like``, the same on every device."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def on_grid(step: Tree, clip: float, grid: float) -> dict[str, Integers]:
    """``step``, clipped, in whole multiples of ``grid``; cut towards zero, so no norm grows.

    Clipped in float64 and to a norm smaller by 2^-30 of itself, so that rounding cannot exceed it.
    """
    exact = {k: v.double().cpu() for k, v in step.items()}
    short = clipped(exact, clip * (1 - 2.0**-30))
    return {k: (v / grid).trunc().to(torch.int64).numpy() for k, v in short.items()}
