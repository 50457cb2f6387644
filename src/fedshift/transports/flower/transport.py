"""Mail by way of Flower: one letter per site and exchange, nodes found by asking who they are."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedshift.base.errors import FedshiftError, RunError
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.core.server import Policy
from fedshift.core.state import MemoryStore, StateStore
from fedshift.transports.flower.envelope import Envelope, from_envelope, to_envelope
from fedshift.transports.flower.site import Header, error_from_site


@dataclass(frozen=True)
class SiteRequest:
    """An envelope for one node; ``kind`` is Flower's message type."""

    node: int
    kind: str
    header: Header
    envelope: Envelope


@dataclass(frozen=True)
class SiteReply:
    """What came back for a ticket: an envelope, or why there is none."""

    ticket: str
    envelope: Envelope | None
    failure: str = ""


class MessageGrid(Protocol):
    """The little that we ask of Flower's grid."""

    def nodes(self) -> set[int]:
        """Nodes that are connected."""
        ...

    def send(self, requests: Sequence[SiteRequest]) -> list[str]:
        """Hand letters over; a ticket for each."""
        ...

    def fetch(self, tickets: set[str]) -> list[SiteReply]:
        """Replies that have come in, possibly none."""
        ...


@dataclass(frozen=True)
class Timeouts:
    """How long to wait, in seconds."""

    connect: float = 120.0  # for a site to come up
    reply: float | None = None  # for a reply; None: for ever
    poll: float = 0.05  # between two looks


class FlowerTransport:
    """Delivers mail over a :class:`Post`; the sites keep their state themselves.

    Under a lenient policy a site that is not there, fails or is late is a loss; else the first one
    in the order of the mail ends the run.
    """

    reply_lifetime = 0
    checks_finite = False  # what other machines send is checked here

    def __init__(
        self,
        grid: MessageGrid,
        config: RunConfig,
        *,
        store: StateStore | None = None,
        patience: Timeouts | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.grid, self.header = grid, Header.of(config)
        self.store = store or MemoryStore()
        self.policy = policy or Policy()
        self.patience = patience or Timeouts(reply=self.policy.timeout)
        self._known: dict[int, str] = {}  # node -> client
        self._absent: set[str] = set()  # nobody waits for them again
        self._attached: list[Broadcast] = []
        self._answers: list[Update] = []

    def attach(self, messages: Sequence[Broadcast]) -> None:
        """Put messages to the next training mail: a process that starts anyway plays them too."""
        self._attached, self._answers = list(messages), []

    def attached_replies(self) -> list[Update]:
        """The replies to what was enclosed, in any order; asks for what did not find a ride."""
        late, self._attached = self._attached, []
        self._answers += [reply for reply in self.deliver(late) if isinstance(reply, Update)]
        found, self._answers = self._answers, []
        return found

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies as they arrive; what several messages say to one site goes in one letter."""
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
        batches: dict[str, list[Broadcast]] = {m.client: [] for m in messages}  # keeps its order
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
        """The node of each client; waits for those that are not there yet."""
        wanted = set(clients)
        awaited = wanted - self._absent
        until = time.monotonic() + self.patience.connect
        while True:
            self._meet()
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
                    f"no site called {missing} has connected within {self.patience.connect:g} s "
                    f"(connected: {present}); start it, or leave it out of the run"
                )
            time.sleep(self.patience.poll)

    def _meet(self) -> None:
        """Forget nodes that left, and ask new ones who they are."""
        present = self.grid.nodes()
        self._known = {node: client for node, client in self._known.items() if node in present}
        strangers = sorted(present - self._known.keys())
        if not strangers:
            return
        requests = {
            f"node {node}": SiteRequest(node, "query.whoami", self.header, Envelope("", {}))
            for node in strangers
        }
        for name, reply in self._exchange(requests):
            if reply.envelope is None:
                raise error_from_site(name, reply.failure)
            client = str(json.loads(reply.envelope.words)["client"])
            if client in self._known.values():
                raise RunError(f"two sites call themselves {client!r}; give each an id of its own")
            self._known[requests[name].node] = client

    def _exchange(self, requests: Mapping[str, SiteRequest]) -> Iterator[tuple[str, SiteReply]]:
        """Send, then give each reply as it comes; a site that is too late has a failed one."""
        tickets = dict(zip(self.grid.send(list(requests.values())), requests, strict=True))
        patience = math.inf if self.patience.reply is None else self.patience.reply
        until = time.monotonic() + patience
        while tickets:
            replies = self.grid.fetch(set(tickets))
            for reply in replies:
                yield tickets.pop(reply.ticket), reply
            if tickets and not replies:
                if time.monotonic() > until:
                    break
                time.sleep(self.patience.poll)
        for ticket, name in tickets.items():
            yield name, SiteReply(ticket, None, f"did not answer within {patience:g} s")

    def close(self) -> None:
        """Nothing of ours to give back."""


def kind(batch: Sequence[Broadcast]) -> str:
    """Flower's name for what is asked."""
    return "train" if any(message.task == "train" for message in batch) else "query"


def read(client: str, asked: Sequence[Broadcast], reply: SiteReply) -> list[Update]:
    """The updates of a reply, one for each message and about it, or the error that it tells of."""
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
