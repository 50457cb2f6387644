"""The transport over a Flower grid: one request per site and exchange, whatever it holds.

The server's loop calls it like any other transport; Flower itself is behind :class:`MessageGrid`,
so the module imports nothing of it. It must never take a node for a client by its position in a
list, and never hand out a reply that does not answer what its site was asked.

How nodes are found. Flower numbers its nodes, and a site that reconnects may get another number.
Before each exchange :meth:`FlowerTransport.find` lists the connected nodes, forgets those that
left, and sends ``query.whoami`` to new ones; the client id in the answer is remembered as long as
the node stays. It repeats this until all wanted clients are there or ``Timeouts.connect`` is over.
A deployment overrides the question, because there a registered key proves who a node is
(``deploy.session.RegisteredSites``).

How evaluation is piggybacked on training. Messages are expensive on this transport: each waits
until the site polls for it, and a process has to start. So the session does not send the
evaluation of round t on its own. It calls :meth:`FlowerTransport.attach`; the next exchange that
trains takes the attached messages along, in the same request as a site's training message and
before it, so that the site evaluates the model before it trains on. Their replies are kept aside
for :meth:`FlowerTransport.attached_replies`. A site outside the cohort gets a request of its own,
with the evaluation alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedshift.base.errors import FedshiftError, RunError
from fedshift.base.tree import MALFORMED
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.core.server import Policy
from fedshift.core.state import MemoryStore, StateStore
from fedshift.transports.flower.envelope import Envelope, from_envelope, short, to_envelope
from fedshift.transports.flower.site import Header, error_from_site


@dataclass(frozen=True)
class SiteRequest:
    """What is sent to one node; ``kind`` is Flower's message type, such as ``query.whoami``."""

    node: int
    kind: str
    header: Header
    envelope: Envelope


@dataclass(frozen=True)
class SiteReply:
    """A node's answer to the request with this ticket: an envelope, or why there is none."""

    ticket: str
    envelope: Envelope | None
    failure: str = ""


class MessageGrid(Protocol):
    """The part of Flower's grid that the transport uses; tests replace it by one in memory."""

    def nodes(self) -> set[int]:
        """Numbers of the nodes that are connected."""
        ...

    def send(self, requests: Sequence[SiteRequest]) -> list[str]:
        """Send requests without waiting; returns a ticket for each, in order."""
        ...

    def fetch(self, tickets: set[str]) -> list[SiteReply]:
        """Replies to these tickets that have arrived so far, possibly none; each is given once."""
        ...


@dataclass(frozen=True)
class Timeouts:
    """How long to wait, in seconds."""

    connect: float = 120.0  # for a site to come up
    reply: float | None = None  # for all replies of an exchange; None: no limit
    poll: float = 0.05  # between two questions to the grid


class FlowerTransport:
    """Delivers messages over a :class:`MessageGrid`; the sites keep their state themselves.

    Under a lenient policy a site that is absent, fails or is late is reported as lost; otherwise
    the first such site in the order of the messages ends the run.
    """

    reply_lifetime = 0  # replies have memory of their own and are never overwritten
    checks_finite = False  # updates of other machines are checked by the server

    def __init__(
        self,
        grid: MessageGrid,
        config: RunConfig,
        *,
        store: StateStore | None = None,
        timeouts: Timeouts | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.grid, self.header = grid, Header.of(config)
        self.store = store or MemoryStore()
        self.policy = policy or Policy()
        self.timeouts = timeouts or Timeouts(reply=self.policy.timeout)
        self._known: dict[int, str] = {}  # node -> client
        self._absent: set[str] = set()  # clients that did not come in time: not waited for again
        self._attached: list[Broadcast] = []  # wait for the next training exchange
        self._answers: list[Update] = []  # to attached messages

    def attach(self, messages: Sequence[Broadcast]) -> None:
        """Piggyback messages on the next exchange that trains, which starts a process anyway."""
        self._attached, self._answers = list(messages), []

    def attached_replies(self) -> list[Update]:
        """Replies to attached messages, in any order; sends those still waiting on their own."""
        late, self._attached = self._attached, []
        self._answers += [reply for reply in self.deliver(late) if isinstance(reply, Update)]
        found, self._answers = self._answers, []
        return found

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies as they arrive; all messages for one site, attached ones too, are one request.

        Replies to attached messages are kept for :meth:`attached_replies`. A loss among them is
        dropped here; the session notices that the reply is missing.
        """
        attached: list[Broadcast] = []
        if any(message.task == "train" for message in messages):
            attached, self._attached = self._attached, []
        aside = {(m.client, m.task) for m in attached}
        for reply in self._deliver(messages, attached):
            if (reply.client, reply.task) not in aside:
                yield reply
            elif isinstance(reply, Update):
                self._answers.append(reply)

    def _deliver(
        self, messages: Sequence[Broadcast], attached: Sequence[Broadcast]
    ) -> Iterator[Update | Lost]:
        batches: dict[str, list[Broadcast]] = {m.client: [] for m in messages}  # keeps the order
        for message in (*attached, *messages):
            batches.setdefault(message.client, []).append(message)
        nodes = self.find(batches)
        packed: dict[int, bytes] = {}
        requests = {
            client: SiteRequest(nodes[client], kind(batch), self.header, to_envelope(batch, packed))
            for client, batch in batches.items()
            if client in nodes
        }
        lost: dict[str, FedshiftError] = {
            client: RunError("it is not connected") for client in batches if client not in nodes
        }
        for client, reply in self._exchange(requests):
            try:
                yield from read(client, batches[client], reply)
            except FedshiftError as error:
                lost[client] = error
        for client in [c for c in batches if c in lost]:
            if not self.policy.lenient:
                raise lost[client]
            for message in batches[client]:
                yield Lost(client, message.task, message.round, str(lost[client]))

    def find(self, clients: Iterable[str]) -> dict[str, int]:
        """The node of each client; waits for those that are not connected yet.

        Under a lenient policy, a client that does not connect in time is waited for only once:
        later exchanges go on without it at once, until it is back.
        """
        wanted = set(clients)
        awaited = wanted - self._absent
        until = time.monotonic() + self.timeouts.connect
        while True:
            self._identify_nodes()
            nodes = {client: node for node, client in self._known.items()}
            if awaited <= nodes.keys():
                self._absent = wanted - nodes.keys()
                return nodes
            if time.monotonic() > until and self.policy.lenient:
                awaited = set()
            elif time.monotonic() > until:
                missing = ", ".join(sorted(wanted - nodes.keys())[:5])
                present = ", ".join(sorted(nodes)) or "none"
                raise RunError(
                    f"no site called {missing} has connected within {self.timeouts.connect:g} s "
                    f"(connected: {present}); start it, or leave it out of the run"
                )
            time.sleep(self.timeouts.poll)

    def _identify_nodes(self) -> None:
        """Forget nodes that left, and ask new ones which client they are."""
        present = self.grid.nodes()
        self._known = {node: client for node, client in self._known.items() if node in present}
        new_nodes = sorted(present - self._known.keys())
        if not new_nodes:
            return
        requests = {
            f"node {node}": SiteRequest(node, "query.whoami", self.header, Envelope("", {}))
            for node in new_nodes
        }
        for name, reply in self._exchange(requests):
            if reply.envelope is None:
                raise error_from_site(name, reply.failure)
            client = introduced(name, reply.envelope)
            if client in self._known.values():
                raise RunError(f"two sites call themselves {client!r}; give each an id of its own")
            self._known[requests[name].node] = client

    def _exchange(self, requests: Mapping[str, SiteRequest]) -> Iterator[tuple[str, SiteReply]]:
        """Send requests and yield each reply as it arrives, then a failed one per late site."""
        tickets = dict(zip(self.grid.send(list(requests.values())), requests, strict=True))
        timeouts = math.inf if self.timeouts.reply is None else self.timeouts.reply
        until = time.monotonic() + timeouts
        while tickets:
            replies = self.grid.fetch(set(tickets))
            for reply in replies:
                if reply.ticket in tickets:  # else it has come before
                    yield tickets.pop(reply.ticket), reply
            if tickets and not replies:
                if time.monotonic() > until:
                    break
                time.sleep(self.timeouts.poll)
        for ticket, name in tickets.items():
            yield name, SiteReply(ticket, None, f"did not answer within {timeouts:g} s")

    def close(self) -> None:
        """Do nothing: whoever opened the grid closes it."""


def introduced(node: str, envelope: Envelope) -> str:
    """The client that a node says it is."""
    try:
        return str(json.loads(envelope.text)["client"])
    except (*MALFORMED, RecursionError) as error:
        raise RunError(f"{node} did not say which client it is ({short(error)})") from None


def kind(batch: Sequence[Broadcast]) -> str:
    """Flower's message type: ``train`` if any of the messages trains, else ``query``."""
    return "train" if any(message.task == "train" for message in batch) else "query"


def read(client: str, asked: Sequence[Broadcast], reply: SiteReply) -> list[Update]:
    """The updates of a reply, one per message asked; raises the error that the site reported.

    A reply about another client, task or round, or in another order, is refused.
    """
    if reply.envelope is None:
        raise error_from_site(client, reply.failure)
    try:
        updates = from_envelope(reply.envelope, Update)
    except RunError as error:
        raise RunError(f"site {client} sent {error}") from error
    subjects = [(u.client, u.task, u.round) for u in updates]
    if subjects != [(m.client, m.task, m.round) for m in asked]:
        raise RunError(f"site {client} answered something else than it was asked: {subjects[:3]}")
    return updates
