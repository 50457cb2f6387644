"""What a part sees at the server, and the two protocols by which the server meets the world.

The engine makes one :class:`Server` per run (``engine.round``) and hands it to the hooks. A
:class:`Transport` carries messages to the sites and back, an :class:`Observer` (the run's record)
sees all of them, a :class:`Policy` says what happens when a site does not answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError
from fedshift.base.tree import Tree
from fedshift.core.message import Broadcast, Lost, Task, Update
from fedshift.core.method import Method
from fedshift.core.net import Net, Scope, batch_norm_buffers, by_scope
from fedshift.core.scenario import Scenario
from fedshift.core.state import MemoryStore, StateStore
from fedshift.data.samples import Samples

OnLoss = Literal["fail", "skip", "wait"]


@dataclass(frozen=True)
class Policy:
    """What to do without a site's answer, and how large an answer may be.

    It belongs to how a run is played, not to what it is: as long as every site answers, every
    policy gives the same bits. Who was lost is in the ledger and in the summary.

    ``fail`` stops the run, ``skip`` goes on with those who answered, ``wait`` writes to the lost
    ones again until they answer or ``timeout`` is over.
    """

    on_loss: OnLoss = "fail"
    timeout: float | None = None  # seconds that one exchange may take
    min_sites: int = 1  # answers that an exchange needs, or all where fewer are asked
    max_bytes: int | None = None  # of one update; None: four times the model, plus 16 MiB

    def __post_init__(self) -> None:
        if self.on_loss not in get_args(OnLoss):
            raise ConfigError(f"on_loss is {self.on_loss!r}; it takes fail, skip or wait")
        for name in ("timeout", "min_sites", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be more than 0")
        if self.on_loss == "wait" and self.timeout is None:
            raise ConfigError(
                "on_loss=wait has no end; set timeout to the seconds to wait", "timeout=SECONDS"
            )

    @property
    def lenient(self) -> bool:
        """Whether a run outlives the loss of a site."""
        return self.on_loss != "fail"


class Transport(Protocol):
    """Delivers mail to the sites and brings their replies back, in any order.

    A site that cannot be reached, fails or takes longer than ``Plan.policy.timeout`` is reported as
    :class:`Lost`, with a reason that whoever runs the site understands; the server's policy says
    what happens then.
    """

    reply_lifetime: (
        int  # replies asked for until a reply's memory may be written again; 0: it never is
    )
    checks_finite: (
        bool  # whether replies come from our own worker, which has looked for non-finite ones
    )
    store: StateStore  # where the sites keep their state

    def deliver(self, messages: Sequence[Broadcast]) -> Iterable[Update | Lost]:
        """One reply or loss per message; what is missing at the end counts as lost."""
        ...

    def close(self) -> None:
        """Give back processes, sockets and memory."""
        ...


class Observer(Protocol):
    """Watches what crosses the wire, in both directions."""

    def sent(self, message: Broadcast) -> None:
        """Server to client."""
        ...

    def received(self, update: Update) -> None:
        """Client to server."""
        ...

    def lost(self, lost: Lost) -> None:
        """A message without an answer that counts."""
        ...


@dataclass
class Server:
    """What a part may read and write at the server; ``shared`` is replaced, never edited."""

    method: Method
    scenario: Scenario
    seed: int
    net: Net  # scratch: load what you need before you use it
    shared: Tree
    initial: Tree  # every entry before round 1, private ones included
    scopes: Mapping[str, Scope]
    parameters: frozenset[str]  # shared entries that are trained; the others are buffers
    personal: StateStore = field(default_factory=MemoryStore)  # see personal_of
    state: defaultdict[str, Tree] = field(default_factory=lambda: defaultdict(dict))
    roster: dict[str, Update] = field(default_factory=dict)  # enrolments by client
    resources: dict[str, Samples] = field(default_factory=dict)  # granted data, by resource
    sites: tuple[str, ...] = ()  # every client there should be, enrolled or not
    policy: Policy = field(default_factory=Policy)  # what to do without a client's answer
    round: int = 0
    participants: int = 0  # updates of this round
    aggregated: Tree = field(default_factory=dict)  # ``shared`` before this round's server phases

    def __post_init__(self) -> None:
        self.statistics = frozenset(batch_norm_buffers(self.net) & self.shared.keys())
        self.nbytes = tree.nbytes(self.initial)
        self._keys = by_scope(self.scopes)

    def generator(self, part: str) -> torch.Generator:
        """The generator of (seed, round, server, part)."""
        return seeds.generator(self.seed, self.round, "server", part)

    def keys(self, scope: Scope) -> frozenset[str]:
        """Entries that live in ``scope``."""
        return self._keys[scope]

    def personal_of(self, client: str, *, before: int | None = None) -> Tree:
        """Personal entries of a client, of a round earlier than ``before`` (now, if not given).

        Before its first visit they are the initial ones. They are read when they are needed: a
        server holds those of nobody.
        """
        keys = self.keys(Scope.PERSONAL)
        if not keys:
            return {}
        newest = self.personal.load(client, before=self.round + 1 if before is None else before)
        return newest["net"] or tree.pick(self.initial, keys)

    def broadcast(self, task: Task, client: str) -> Broadcast:
        """What one client needs for a task: the current model, and payload if it is to train."""
        if task in ("enrol", "donate"):
            return Broadcast(client, task, self.round)
        sent = self.method.gather(lambda part: part.send(self, client)) if task == "train" else {}
        own = self.personal_of(client, before=self.round + (task != "train"))
        return Broadcast(client, task, self.round, self.shared, own, sent)
