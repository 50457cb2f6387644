"""The client as a part sees it during one visit.

A visit is the work that one message causes at one site. ``engine.visit`` makes a :class:`Client`
for each visit and passes it to the client-side hooks of the method's parts. It is data, not a class
to inherit from, and a part must never keep a reference to it beyond the visit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError
from fedshift.base.tree import Tree
from fedshift.core.loop import Batch
from fedshift.core.net import Net, Output, call_frozen
from fedshift.core.objective import Objective
from fedshift.core.part import Part
from fedshift.core.scenario import Scenario
from fedshift.core.state import State
from fedshift.data.federation import Site
from fedshift.data.samples import Samples


@dataclass
class Client:
    """What a part may read and write at a client; made anew for each visit.

    ``received``, ``initial`` and ``inbox`` are read-only. ``net`` is one net that all clients of a
    process share: it is loaded in place before each visit, so nothing may be remembered in it.
    ``state[part.name]`` persists between visits and never leaves the site; the site's inputs must
    not be in it, and a visit that ends with one there is refused. ``scratch[part.name]`` is memory
    of this visit alone: whatever is in it, Python objects and inputs included, is dropped at the
    end and never written anywhere.
    """

    site: Site
    net: Net
    scenario: Scenario
    seed: int
    round: int  # 1-based; 0 is enrolment
    received: Tree  # every entry of the net as it was before training
    initial: Tree  # every entry as it was before round 1
    sent: frozenset[str]  # shared entries, which came from the server
    inbox: Tree  # payload of the message, "part/key"; see payload()
    state: State
    resources: Mapping[str, Samples]  # extra data that the scenario allows, by resource
    scratch: defaultdict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    batches: int = 0  # batches drawn so far in this visit
    steps: int = 0  # optimiser steps on the shared entries, see Worker._steps
    _generators: dict[str, torch.Generator] = field(default_factory=dict)
    _objective: Callable[[Batch], Tensor] | None = None  # set while the visit trains

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
    def task(self) -> Objective:
        """The scenario's objective: ``client.task.loss(outputs, targets)``."""
        return self.scenario.task

    def objective(self, batch: Batch) -> Tensor:
        """The whole objective of the current base player on a batch, at the present weights.

        A new forward pass, the task loss and every part's ``loss``, added up; as in the loop,
        BatchNorm statistics do not move a second time on the same batch. For ``edit_gradients`` and
        for players with an objective of their own; a part's ``loss`` cannot call it.
        """
        if self._objective is None:
            raise ConfigError("client.objective can be asked only while the client trains")
        return self._objective(batch)

    @property
    def lr(self) -> float:
        """Learning rate of this round."""
        return self.scenario.optimisation(self.round).lr

    def generator(self, part: str) -> torch.Generator:
        """The torch generator of (seed, round, client, part).

        Every call in a visit returns the same generator, which goes on where it stopped, so a part
        that draws on each batch gets new numbers each time.
        """
        if part not in self._generators:
            self._generators[part] = seeds.generator(self.seed, self.round, self.id, part)
        return self._generators[part]

    def numpy(self, part: str) -> np.random.Generator:
        """A new NumPy generator, seeded by the next draw of :meth:`generator`."""
        draw = torch.randint(2**62, (), generator=self.generator(part))
        return np.random.default_rng(int(draw))

    def payload(self, part: Part) -> Tree:
        """What ``part.send`` returned at the server for this client, keys without the prefix."""
        return tree.under(part.name, self.inbox)

    def reference(self, name: str, batch: Batch) -> Output | None:
        """Output of a frozen model on the batch, as MOON contrasts features with.

        ``name`` is ``received``, ``initial``, or ``previous``: this client's model after its last
        visit, None in its first. The forward pass runs in eval mode without gradient and changes
        no buffer. It is cached in ``batch.memo``, so several parts that ask cost one forward. The
        part must name the model in its ``references``, or ``previous`` is not stored.
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
        return self.initial if name == "initial" else dict(self.state.get(name, {}))

    def anchors(self) -> list[tuple[str, Tensor, Tensor]]:
        """(name, parameter, received value) of every shared parameter, as SCAFFOLD needs them."""
        named = self.net.named_parameters()
        return [(k, p, self.received[k]) for k, p in named if k in self.sent]
