"""How much each participant counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift.core.component import Declares
from fedshift.core.message import Update

if TYPE_CHECKING:
    from fedshift.core.server import Server
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedshift.base import tree
from fedshift.base.tree import Tree
from fedshift.core.component import described, setting, settings_of, with_setting


class Weighting(Declares):
    """One weight per update; called once per round, so it may keep state at the server."""

    from_enrolments: ClassVar[bool] = False  # whether the clients' enrolments are all it looks at

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,) in float64 that sum to one, in the order of ``updates``."""
        raise NotImplementedError


class ByExamples(Weighting):
    """n_k / n (McMahan et al., AISTATS 2017, Algorithm 1)."""

    from_enrolments = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:  # noqa: ARG002, D102
        n = torch.tensor([u.examples for u in updates], dtype=torch.float64)
        return n / n.sum()


class Uniform(Weighting):
    """1 / n."""

    from_enrolments = True

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:  # noqa: ARG002, D102
        return torch.full((len(updates),), 1.0 / len(updates), dtype=torch.float64)


WEIGHTINGS: dict[str, Weighting] = {"examples": ByExamples(), "uniform": Uniform()}


class ServerOptimiser(Declares):
    """Next shared parameters from the current and the combined ones."""

    def __call__(self, server: Server, combined: Tree) -> Tree:
        """``combined`` holds parameters only; state lives in ``server.state[self.name]``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Add(ServerOptimiser):
    """theta + lr * (combined - theta); at lr = 1 the combined parameters themselves."""

    lr: float = setting(1.0, "server learning rate", low=0.0)

    def __call__(self, server: Server, combined: Tree) -> Tree:  # noqa: D102
        if self.lr == 1.0:
            return combined
        return {k: server.shared[k].lerp(v, self.lr) for k, v in combined.items()}


@dataclass(frozen=True)
class Aggregator(Declares):
    """A combining rule with its weighting and its server optimiser; subclasses are the rules.

    What the rule covers goes through :meth:`combine` and the optimiser. Other buffers are averaged
    with the same weights, counters take the largest value, and BatchNorm statistics follow the
    scenario.
    """

    weights: Weighting | None = None  # None: the scenario's choice
    optimiser: ServerOptimiser = field(default_factory=Add)

    def covers(self, server: Server) -> frozenset[str]:
        """Shared entries that go through :meth:`combine`: the trained ones."""
        return server.parameters

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """Combined entries that the rule covers, from ``updates`` with ``weights`` (n,)."""
        raise NotImplementedError

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tree:
        """Next shared entries: parameters by rule and optimiser, buffers by weighted mean."""
        weights = self.weighting(server)(server, updates)  # (n,)
        new = self.optimiser(server, self.combine(server, updates, weights))
        buffers = server.shared.keys() - self.covers(server)
        averaged = weighted_mean([tree.pick(u.shared, buffers) for u in updates], weights)
        return {k: new.get(k, averaged.get(k, v)) for k, v in server.shared.items()}

    def weighting(self, server: Server) -> Weighting:
        """The rule's own, or the scenario's."""
        return self.weights or WEIGHTINGS[server.scenario.weights]

    def streams(self, server: Server) -> bool:  # noqa: ARG002  subclasses ask the server
        """Whether :meth:`stream` gives what calling gives."""
        return False

    def stream(self, server: Server, expected: Sequence[Update], replies: Iterable[Update]) -> Tree:
        """As calling, for ``replies`` that arrive one by one in the order of ``expected``."""
        raise NotImplementedError

    @property
    def declared(self) -> tuple[Declares, ...]:
        """The rule, its server optimiser and its weighting."""
        return (self, self.optimiser, *([self.weights] if self.weights else []))

    def settings(self) -> list[tuple[str, str, Any]]:
        """Every hyper-parameter as (owner, key, value)."""
        return [(d.name, f.name, getattr(d, f.name)) for d in self.declared for f in settings_of(d)]

    def set(self, owner: str, key: str, value: Any) -> Aggregator:
        """A copy with one other value, if ``owner`` is the rule, its weighting or its optimiser."""
        if owner == self.name:
            return with_setting(self, key, value)
        if self.weights and owner == self.weights.name:
            return replace(self, weights=with_setting(self.weights, key, value))
        if owner == self.optimiser.name:
            return replace(self, optimiser=with_setting(self.optimiser, key, value))
        return self

    def describe(self) -> dict[str, Any]:
        """Rule, weighting and optimiser as JSON."""
        weights = described(self.weights) if self.weights else {"name": "scenario"}
        return described(self) | {"weights": weights, "optimiser": described(self.optimiser)}


@dataclass(frozen=True)
class Mean(Aggregator):
    """sum_k w_k theta_k."""

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:  # noqa: D102
        return weighted_mean([tree.pick(u.shared, server.parameters) for u in updates], weights)

    def streams(self, server: Server) -> bool:
        """If the weights are known before the replies are."""
        return self.weighting(server).from_enrolments

    def stream(self, server: Server, expected: Sequence[Update], replies: Iterable[Update]) -> Tree:
        """Parameters and buffers in one running sum."""
        weights = self.weighting(server)(server, expected)
        merged = weighted_mean((u.shared for u in replies), weights)
        new = self.optimiser(server, tree.pick(merged, self.covers(server)))
        return {k: new.get(k, merged.get(k, v)) for k, v in server.shared.items()}


def weighted_mean(trees: Iterable[Tree], weights: Tensor) -> Tree:
    """Running sums over ``trees`` in order, never a stack; counters take the largest value."""
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
