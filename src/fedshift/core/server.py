"""The server as a part sees it, and the interfaces that connect it to sites and to the record.

``engine.round`` makes one :class:`Server` per run and passes it to the server-side hooks. A
:class:`Transport` carries messages to the sites and back, an :class:`Observer` (the run's record)
sees each of them, and a :class:`Policy` says what happens if a site does not reply. The server
must learn about clients from messages alone, never from their data or state.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, Protocol, get_args

import torch

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError
from fedshift.base.tree import Tree
from fedshift.core.message import Broadcast, Lost, Task, Update
from fedshift.core.method import Method
from fedshift.core.net import Net, Scope, batch_norm_buffers, by_scope
from fedshift.core.part import Scoring
from fedshift.core.payload import Declared, EntrySpec, ModelSpec
from fedshift.core.scenario import Scenario
from fedshift.core.state import MemoryStore, StateStore
from fedshift.data.samples import Samples

OnLoss = Literal["fail", "skip", "wait"]
NEVER = -1  # in place of a round


@dataclass(frozen=True)
class Policy:
    """What to do when a site does not reply, and how large a reply may be.

    ``fail`` stops the run, ``skip`` goes on with the sites that replied, ``wait`` sends the message
    again until the site replies or ``timeout`` has passed.

    A policy is not part of a run's identity: as long as every site replies, every policy gives the
    same bits. Lost sites are listed in the ledger and in the summary.
    """

    on_loss: OnLoss = "fail"
    timeout: float | None = None  # seconds that one exchange may take
    min_sites: int = 1  # replies that an exchange needs; all, if it asks fewer sites
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
        """Whether a run continues after the loss of a site."""
        return self.on_loss != "fail"


class Transport(Protocol):
    """Delivers messages to the sites and returns their replies, in any order.

    A site that cannot be reached, fails or takes longer than ``Plan.policy.timeout`` is reported as
    :class:`Lost`, with a reason that the site's operator understands; the server's policy decides
    what happens then.

    ``reply_lifetime`` is the number of further replies you may request before this one's tensors
    are overwritten; 0 means never, 1 that the very next request may overwrite them. Transports
    reuse memory to save a copy per reply: in process, a reply is a view of the one resident net,
    which the next visit overwrites (1); a worker of the pool writes its replies in turn into a few
    blocks of shared memory (2); what arrives by network has memory of its own (0). Code that is
    done with a reply when it requests the next, as a running sum is, needs no copy. Two places hold
    replies for longer and rely on this number: ``engine.replies.ReplyBuffer``, where replies that
    arrived early wait for their turn, copies each just before its lifetime ends; ``engine.round``
    copies a reply at once, unless the number is 0, wherever it collects all of them. A transport
    that states too large a number corrupts results silently.

    ``checks_finite`` says that replies come from our own worker on this machine, which has already
    searched the model's entries for NaN and infinity, so that the server need not repeat it.
    ``store`` is where the sites keep their state.
    """

    reply_lifetime: int
    checks_finite: bool
    store: StateStore

    def deliver(self, messages: Sequence[Broadcast]) -> Iterable[Update | Lost]:
        """One reply or loss per message, as they arrive; a message without one counts as lost."""
        ...

    def close(self) -> None:
        """Release processes, sockets and memory."""
        ...


class Observer(Protocol):
    """Is notified of every message in both directions; must not change any."""

    def sent(self, message: Broadcast) -> None:
        """A message to a client is about to be delivered."""
        ...

    def received(self, update: Update) -> None:
        """A client's reply has arrived; it has not been checked yet."""
        ...

    def lost(self, lost: Lost) -> None:
        """A message got no reply, or one that was rejected."""
        ...


@dataclass(frozen=True)
class RoundSpent:
    """A round as the accounting of privacy sees it (``runs.spending``)."""

    round: int
    begun: int  # times; more than once if the run was interrupted in it
    sites: int = 0  # enrolled when its cohort was drawn; 0 if it never got that far
    cohort: int = 0  # clients asked to train
    complete: bool = False  # all of them replied
    secret: bool = False  # the cohort was drawn from a secret of the server


@dataclass
class Server:
    """What a part may read and write at the server.

    ``shared`` is replaced, never edited in place: messages and parts hold references to the old
    one. ``net`` is for temporary use by any hook. ``state[part.name]`` belongs to that part and is
    part of every checkpoint.
    """

    method: Method
    scenario: Scenario
    seed: int
    net: Net  # for temporary use: load entries before you use it
    shared: Tree
    initial: Tree  # every entry before round 1, private ones too
    scopes: Mapping[str, Scope]
    parameters: frozenset[str]  # shared entries that are trained; the others are buffers
    personal: StateStore = field(default_factory=MemoryStore)  # see personal_of
    state: defaultdict[str, Tree] = field(default_factory=lambda: defaultdict(dict))
    roster: dict[str, Update] = field(default_factory=dict)  # enrolments by client, without tensors
    resources: dict[str, Samples] = field(default_factory=dict)  # extra data allowed, by resource
    sites: tuple[str, ...] = ()  # every expected client, enrolled or not
    policy: Policy = field(default_factory=Policy)  # if a client does not reply
    round: int = 0
    participants: int = 0  # number of updates in this round
    spent: Sequence[RoundSpent] = ()  # rounds so far, where a privacy part accounts for them
    aggregated: Tree = field(default_factory=dict)  # ``shared`` before this round's server phases
    capped: dict[str, float] = field(default_factory=dict)  # weights over max_weight in this round
    # Rounds of the clients that keep state, see ``Broadcast.visited``; None: not known.
    visits: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.statistics = frozenset(batch_norm_buffers(self.net) & self.shared.keys())
        self.nbytes = tree.nbytes(self.initial)
        self._keys = by_scope(self.scopes)
        # Entries that a reply to each task must contain: computed once, by ``engine.replies``.
        self.expected: dict[tuple[str, Task], Mapping[str, EntrySpec]] = {}
        self.variances = frozenset(k for k in batch_norm_buffers(self.net) if k.endswith("_var"))
        trained = {name for name, _ in self.net.named_parameters()}
        self.counters = frozenset(
            k for k, v in self.initial.items() if k not in trained and not v.is_floating_point()
        )
        self.model = ModelSpec.of(self.net, self.scenario, self.scopes)

    @cached_property
    def uploads(self) -> Mapping[Task, Declared]:
        """Payload that a reply to each task must contain, as the parts declare it."""
        return self.method.uploads(self.model)

    def remember_visits(self, cohort: Iterable[str], updates: Iterable[Update]) -> None:
        """Note who was asked in this round, and who has kept state.

        A client that has answered and never kept any needs no note.
        """
        kept = {u.client: u.kept for u in updates}
        for client in cohort:
            before = self.visits.get(client, (NEVER, NEVER))
            if kept.get(client):
                self.visits[client] = self.round, self.round
            elif before is not None and (client not in kept or before[0] != NEVER):
                self.visits[client] = before[0], self.round

    def generator(self, part: str) -> torch.Generator:
        """A torch generator of (seed, round, server, part), from its start at every call."""
        return seeds.generator(self.seed, self.round, "server", part)

    def scoring(self) -> Scoring:
        """What the parts' ``predict`` and ``adapt`` see when the server itself scores a model."""
        inbox = self.method.send_scoring(self, None)
        return Scoring(None, inbox, partial(seeds.generator, self.seed, self.round, "scoring"))

    def keep_cohorts_secret(self) -> None:
        """Draw cohorts from a secret from now on; it is part of the state, so of checkpoints.

        The run's seed is known to every site, which could compute from it who takes part.
        """
        drawn = torch.frombuffer(bytearray(os.urandom(32)), dtype=torch.uint8)
        self.state["cohorts"] = {"secret": drawn}

    @property
    def cohort_secret(self) -> bytes | None:
        """What cohorts are drawn from in place of the seed, if they are secret."""
        secret = self.state.get("cohorts", {}).get("secret")
        return None if secret is None else secret.numpy().tobytes()

    def keys(self, scope: Scope) -> frozenset[str]:
        """Names of the entries in ``scope``."""
        return self._keys[scope]

    def personal_of(self, client: str, *, before: int | None = None) -> Tree:
        """Personal entries of a client: the newest from a round earlier than ``before``.

        ``before`` defaults to the next round, so the current one counts. Before a client's first
        visit they are the initial ones. They are read from the store when needed, so the server's
        memory does not grow with the number of clients.
        """
        keys = self.keys(Scope.PERSONAL)
        if not keys:
            return {}
        newest = self.personal.load(client, before=self.round + 1 if before is None else before)
        return newest["net"] or tree.pick(self.initial, keys)

    def broadcast(self, task: Task, client: str) -> Broadcast:
        """The message that asks one client for a task: the current model, and the parts' payload.

        Enrolling, donating private entries and a part's own exchange need no model. Training in
        round t starts from the personal entries of an earlier round; other tasks, which follow it,
        see those of round t.
        """
        visited = self.visits.get(client, (NEVER, NEVER))
        if task in ("enrol", "donate", "talk"):
            return Broadcast(client, task, self.round, visited=visited)
        sent: Tree = {}
        if task == "train":
            sent = self.method.gather(lambda part: part.send(self, client))
        elif task in ("score", "assess"):
            sent = self.method.send_scoring(self, client)
        own = self.personal_of(client, before=self.round + (task != "train"))
        return Broadcast(client, task, self.round, self.shared, own, sent, visited)
