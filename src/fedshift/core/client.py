"""What a part sees at a client during one visit.

The engine makes a :class:`Client` for each visit (``engine.visit``) and hands it to the hooks of
the method's parts. It is data, not a class to inherit from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedshift.base import seeds, tree
from fedshift.base.tree import Tree
from fedshift.core.loop import (
    Batch,
)
from fedshift.core.method import Part
from fedshift.core.net import (
    Net,
    Output,
    call_frozen,
)
from fedshift.core.scenario import Scenario
from fedshift.core.state import State
from fedshift.data.federation import Site
from fedshift.data.samples import Samples


@dataclass
class Client:
    """What a part may read and write at a client; made anew for each visit.

    ``received`` and ``inbox`` are read-only. ``state[part.name]`` survives visits and never
    leaves the site.
    """

    site: Site
    net: Net
    scenario: Scenario
    seed: int
    round: int  # 1-based; 0 is enrolment
    received: Tree  # every entry of the net as it was before training
    initial: Tree  # every entry as it was before round 1
    sent: frozenset[str]  # entries of the net that came from the server
    inbox: Tree  # payload as it arrived, "part/key"
    state: State
    resources: Mapping[str, Samples]  # granted data beside its own, by resource
    batches: int = 0
    steps: int = 0  # optimiser steps that moved what the server sent, see Worker._steps
    _generators: dict[str, torch.Generator] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Stable name of the site."""
        return self.site.id

    @property
    def examples(self) -> int:
        """Number of training samples."""
        return len(self.site.data.train)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.net.classes

    @property
    def lr(self) -> float:
        """Learning rate of this round."""
        return self.scenario.optimisation(self.round).lr

    def generator(self, part: str) -> torch.Generator:
        """The generator of (seed, round, client, part); the same one throughout the visit."""
        if part not in self._generators:
            self._generators[part] = seeds.generator(self.seed, self.round, self.id, part)
        return self._generators[part]

    def numpy(self, part: str) -> np.random.Generator:
        """A NumPy generator seeded by the next draw of :meth:`generator`."""
        draw = torch.randint(2**62, (), generator=self.generator(part))
        return np.random.default_rng(int(draw))

    def payload(self, part: Part) -> Tree:
        """What the server half of ``part`` sent."""
        return tree.under(part.name, self.inbox)

    def reference(self, name: str, batch: Batch) -> Output | None:
        """A frozen model on the batch, one forward however many parts ask.

        ``received``, ``initial``, or ``previous`` (this client's model after its last visit; None
        in its first). Eval mode, no gradient, no trace. The part declares it in ``references``.
        """
        key = f"reference/{name}"
        if key not in batch.memo:
            entries = self._entries(name)
            batch.memo[key] = call_frozen(self.net, entries, batch.x) if entries else None
        out: Output | None = batch.memo[key]
        return out

    def _entries(self, name: str) -> Tree:
        if name == "received":
            return self.received
        return self.initial if name == "initial" else self.state.get(name, {})

    def anchors(self) -> list[tuple[str, Tensor, Tensor]]:
        """(name, parameter, received value) of every parameter that the server sent."""
        named = self.net.named_parameters()
        return [(k, p, self.received[k]) for k, p in named if k in self.sent]
