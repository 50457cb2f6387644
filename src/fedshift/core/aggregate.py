"""Aggregation: a weighting, a combining rule and a server optimiser, each replaceable alone.

``engine.round`` calls the method's one :class:`Aggregator` once per round, after every part's
``merge``, and makes the result the new ``server.shared``. Authors subclass :class:`Weighting`,
:class:`Aggregator` or :class:`ServerOptimiser`, so that one paper's weights work with another's
rule. None of them may edit ``server.shared`` or a client's update in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedshift.base import tree
from fedshift.base.tree import Tree
from fedshift.core.component import Declares, described, setting, settings_of, with_setting
from fedshift.core.message import Update

if TYPE_CHECKING:
    from fedshift.core.server import Server


class Weighting(Declares):
    """Aggregation weights of the clients, one per update.

    Called once per round, so it may keep state in ``server.state[self.name]``, as GroupDRO does.

    ``from_enrolments`` says that the weights follow from what clients reported when they enrolled
    (``update.examples``, ``update.facts``) and from nothing in the round's replies. The server then
    knows every weight before the first reply arrives and can add each reply to a running sum as it
    comes in, so that memory does not grow with the cohort (:meth:`Mean.stream`). To compute the
    weights ahead, it calls the weighting with the stored enrolments in place of the updates:
    leave it False if you read a loss, a payload or a parameter. Weights by number of examples
    set it; weights by loss cannot.
    """

    from_enrolments: ClassVar[bool] = False

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,) in float64 that sum to one, in the order of ``updates``."""
        raise NotImplementedError


class ByExamples(Weighting):
    """Weights by number of examples, n_k / n (McMahan et al., AISTATS 2017, Algorithm 1)."""

    from_enrolments = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:  # noqa: ARG002, D102
        n = torch.tensor([u.examples for u in updates], dtype=torch.float64)
        return n / n.sum()


class Uniform(Weighting):
    """The same weight for every participant, 1 / n."""

    from_enrolments = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:  # noqa: ARG002, D102
        return torch.full((len(updates),), 1.0 / len(updates), dtype=torch.float64)


def bounded(weights: Tensor, most: float) -> Tensor:
    """Weights (n,) that sum to one, none above ``most``, or above 1 / n where that is more.

    What is taken from those above goes to the others in proportion. Weights that are all below come
    back as they are.

    Examples:
        >>> bounded(torch.tensor([0.9, 0.06, 0.04]), 0.5)
        tensor([0.5000, 0.3000, 0.2000])
    """
    most = max(most, 1.0 / len(weights))
    full = torch.zeros_like(weights, dtype=torch.bool)
    while bool((over := weights > most * (1 + 1e-12)).any()):
        full |= over
        rest = weights.masked_fill(full, 0.0)
        rest = rest if bool(rest.sum() > 0) else (~full).to(weights.dtype)
        left = 1.0 - most * int(full.sum())
        weights = torch.where(full, most, rest * (left / rest.sum().clamp(min=1e-300)))
    return weights


WEIGHTINGS: dict[str, Weighting] = {"examples": ByExamples(), "uniform": Uniform()}


class ServerOptimiser(Declares):
    """The server's step from the current shared parameters towards the combined ones.

    FedAdam and its relatives treat ``combined - server.shared`` as a pseudo-gradient.
    """

    def __call__(self, server: Server, combined: Tree) -> Tree:
        """``combined`` holds parameters, no buffers; state lives in ``server.state[self.name]``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Add(ServerOptimiser):
    """theta + lr * (combined - theta); at lr = 1 exactly the combined parameters."""

    lr: float = setting(1.0, "server learning rate", low=0.0)

    def __call__(self, server: Server, combined: Tree) -> Tree:  # noqa: D102
        if self.lr == 1.0:
            return combined
        return {k: server.shared[k].lerp(v, self.lr) for k, v in combined.items()}


@dataclass(frozen=True)
class Aggregator(Declares):
    """A combining rule with its weighting and its server optimiser; subclasses are the rules.

    The entries that the rule covers (by default the trained parameters) go through :meth:`combine`
    and the server optimiser. All other shared entries are buffers: averaged with the same weights,
    except that integer counters take the largest value. Whether BatchNorm statistics are among them
    is the scenario's choice (``bn``).
    """

    weights: Weighting | None = None  # None: the scenario's choice
    optimiser: ServerOptimiser = field(default_factory=Add)

    def covers(self, server: Server) -> frozenset[str]:
        """Shared entries that go through :meth:`combine`; by default the trained parameters."""
        return server.parameters

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The rule itself: one value per covered entry, from ``updates`` and ``weights`` (n,)."""
        raise NotImplementedError

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tree:
        """Next shared entries: parameters by rule and optimiser, buffers by weighted mean."""
        weights = self.weights_of(server, updates)
        new = self.optimiser(server, self.combine(server, updates, weights))
        buffers = server.shared.keys() - self.covers(server)
        averaged = weighted_mean([tree.pick(u.shared, buffers) for u in updates], weights)
        return {k: new.get(k, averaged.get(k, v)) for k, v in server.shared.items()}

    def weighting(self, server: Server) -> Weighting:
        """The weighting in force: this aggregator's own, or else the scenario's."""
        return self.weights or WEIGHTINGS[server.scenario.weights]

    def weights_of(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,) of the updates, none above the scenario's ``max_weight``.

        Those that were above are noted in ``server.capped``, with what they would have been.
        """
        weights, most = self.weighting(server)(server, updates), server.scenario.max_weight
        if most is None:
            return weights
        kept = bounded(weights, most)
        pairs = zip(updates, weights.tolist(), kept.tolist(), strict=True)
        server.capped |= {u.client: was for u, was, now in pairs if now < was * (1 - 1e-12)}
        return kept

    def streams(self, server: Server) -> bool:  # noqa: ARG002  subclasses ask the server
        """Whether :meth:`stream` is implemented, and equals calling with all updates at once."""
        return False

    def stream(self, server: Server, expected: Sequence[Update], replies: Iterable[Update]) -> Tree:
        """As calling, while ``replies`` arrive one by one.

        ``expected`` are the cohort's enrolments, in the order in which the replies will come. A
        reply's tensors may be overwritten once the next one is requested, so use each at once.
        """
        raise NotImplementedError

    @property
    def declared(self) -> tuple[Declares, ...]:
        """The rule, its server optimiser and its weighting."""
        return (self, self.optimiser, *([self.weights] if self.weights else []))

    @property
    def label(self) -> str:
        """What differs from the plain mean: rule, weighting, server optimiser; empty if nothing.

        Examples:
            >>> Mean(Uniform(), Add(lr=0.5)).label, Mean().label
            ('uniform, add', '')
        """
        plain = type(self)()
        words = [] if type(self) is Mean else [self.name]
        words += [self.weights.name] if self.weights and self.weights != plain.weights else []
        words += [self.optimiser.name] if self.optimiser != plain.optimiser else []
        return ", ".join(words)

    def settings(self) -> list[tuple[str, str, Any]]:
        """Every hyper-parameter as (owner's name, key, value)."""
        return [(d.name, f.name, getattr(d, f.name)) for d in self.declared for f in settings_of(d)]

    def set(self, owner: str, key: str, value: Any) -> Aggregator:
        """A copy with one setting of ``owner`` changed, if that is one of the three components."""
        if owner == self.name:
            return with_setting(self, key, value)
        if self.weights and owner == self.weights.name:
            return replace(self, weights=with_setting(self.weights, key, value))
        if owner == self.optimiser.name:
            return replace(self, optimiser=with_setting(self.optimiser, key, value))
        return self

    def describe(self) -> dict[str, Any]:
        """Rule, weighting and server optimiser with their settings, as JSON."""
        weights = described(self.weights) if self.weights else {"name": "scenario"}
        return described(self) | {"weights": weights, "optimiser": described(self.optimiser)}


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean, sum_k w_k theta_k."""

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:  # noqa: D102
        return weighted_mean([tree.pick(u.shared, server.parameters) for u in updates], weights)

    def streams(self, server: Server) -> bool:
        """True if the weights are known before the replies arrive."""
        return self.weighting(server).from_enrolments

    def stream(self, server: Server, expected: Sequence[Update], replies: Iterable[Update]) -> Tree:
        """Parameters and buffers in one running sum over the replies."""
        weights = self.weights_of(server, expected)
        merged = weighted_mean((u.shared for u in replies), weights)
        new = self.optimiser(server, tree.pick(merged, self.covers(server)))
        return {k: new.get(k, merged.get(k, v)) for k, v in server.shared.items()}


def weighted_mean(trees: Iterable[Tree], weights: Tensor) -> Tree:
    """Weighted sum of ``trees``, entry by entry; integer counters take the largest value.

    ``trees`` is consumed one by one into a running sum, so that no more than one tree and the sum
    are in memory. The sum runs in the order of ``trees``, which must therefore not depend on
    which client replied first: floating-point addition is not associative.
    """
    out: Tree = {}
    for entries, w_k in zip(trees, weights.tolist(), strict=True):
        if not out:
            out = {k: v * w_k if v.is_floating_point() else v.clone() for k, v in entries.items()}
            summed = [k for k, v in out.items() if v.is_floating_point()]
            sums = [out[k] for k in summed]
            continue
        if sums:
            torch._foreach_add_(sums, [entries[k] for k in summed], alpha=w_k)
        for k in out.keys() - summed:
            torch.maximum(out[k], entries[k], out=out[k])
    return out
