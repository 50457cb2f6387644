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
from fedshift.transports.flower.envelope import Envelope, seal, unseal
from fedshift.transports.flower.site import Header, heard


@dataclass(frozen=True)
class Letter:
    """An envelope for one node; ``kind`` is Flower's message type."""

    node: int
    kind: str
    header: Header
    envelope: Envelope


@dataclass(frozen=True)
class Reply:
    """What came back for a ticket: an envelope, or why there is none."""

    ticket: str
    envelope: Envelope | None
    failure: str = ""


class Post(Protocol):
    """The little that we ask of Flower's grid."""

    def nodes(self) -> set[int]:
        """Nodes that are connected."""
        ...

    def send(self, letters: Sequence[Letter]) -> list[str]:
        """Hand letters over; a ticket for each."""
        ...

    def fetch(self, tickets: set[str]) -> list[Reply]:
        """Replies that have come in, possibly none."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds."""

    connect: float = 120.0  # for a site to come up
    reply: float | None = None  # for a reply; None: for ever
    poll: float = 0.05  # between two looks


class FlowerTransport:
    """Delivers mail over a :class:`Post`; the sites keep their state themselves.

    Under a lenient policy a site that is not there, fails or is late is a loss; else the first one
    in the order of the mail ends the run.
    """

    borrows = 0
    examines = False  # what other machines send is checked here

    def __init__(
        self,
        post: Post,
        config: RunConfig,
        *,
        store: StateStore | None = None,
        patience: Patience | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.post, self.header = post, Header.of(config)
        self.store = store or MemoryStore()
        self.policy = policy or Policy()
        self.patience = patience or Patience(reply=self.policy.timeout)
        self._known: dict[int, str] = {}  # node -> client
        self._absent: set[str] = set()  # nobody waits for them again
        self._riders: list[Broadcast] = []
        self._answers: list[Update] = []

    def enclose(self, mail: Sequence[Broadcast]) -> None:
        """Put messages to the next training mail: a process that starts anyway plays them too."""
        self._riders, self._answers = list(mail), []

    def enclosed(self) -> list[Update]:
        """The replies to what was enclosed, in any order; asks for what did not find a ride."""
        late, self._riders = self._riders, []
        self._answers += [reply for reply in self.deliver(late) if isinstance(reply, Update)]
        found, self._answers = self._answers, []
        return found

    def deliver(self, mail: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies as they arrive; what several messages say to one site goes in one letter."""
        riders: list[Broadcast] = []
        if any(message.task == "train" for message in mail):
            riders, self._riders = self._riders, []
        aside = {(m.client, m.task) for m in riders}
        for reply in self._deliver(mail, riders):
            if (reply.client, reply.task) not in aside:
                yield reply
            elif isinstance(reply, Update):
                self._answers.append(reply)

    def _deliver(
        self, mail: Sequence[Broadcast], riders: Sequence[Broadcast]
    ) -> Iterator[Update | Lost]:
        batches: dict[str, list[Broadcast]] = {m.client: [] for m in mail}  # keeps its order
        for message in (*riders, *mail):
            batches.setdefault(message.client, []).append(message)
        nodes = self.find(batches)
        packed: dict[int, bytes] = {}
        letters = {
            client: Letter(nodes[client], kind(batch), self.header, seal(batch, packed))
            for client, batch in batches.items()
            if client in nodes
        }
        lost: dict[str, FedshiftError] = {
            client: RunError("it is not connected") for client in batches if client not in nodes
        }
        for client, reply in self._exchange(letters):
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
        present = self.post.nodes()
        self._known = {node: client for node, client in self._known.items() if node in present}
        strangers = sorted(present - self._known.keys())
        if not strangers:
            return
        letters = {
            f"node {node}": Letter(node, "query.whoami", self.header, Envelope("", {}))
            for node in strangers
        }
        for name, reply in self._exchange(letters):
            if reply.envelope is None:
                raise heard(name, reply.failure)
            client = str(json.loads(reply.envelope.words)["client"])
            if client in self._known.values():
                raise RunError(f"two sites call themselves {client!r}; give each an id of its own")
            self._known[letters[name].node] = client

    def _exchange(self, letters: Mapping[str, Letter]) -> Iterator[tuple[str, Reply]]:
        """Send, then give each reply as it comes; a site that is too late has a failed one."""
        tickets = dict(zip(self.post.send(list(letters.values())), letters, strict=True))
        patience = math.inf if self.patience.reply is None else self.patience.reply
        until = time.monotonic() + patience
        while tickets:
            replies = self.post.fetch(set(tickets))
            for reply in replies:
                yield tickets.pop(reply.ticket), reply
            if tickets and not replies:
                if time.monotonic() > until:
                    break
                time.sleep(self.patience.poll)
        for ticket, name in tickets.items():
            yield name, Reply(ticket, None, f"did not answer within {patience:g} s")

    def close(self) -> None:
        """Nothing of ours to give back."""


def kind(batch: Sequence[Broadcast]) -> str:
    """Flower's name for what is asked."""
    return "train" if any(message.task == "train" for message in batch) else "query"


def read(client: str, asked: Sequence[Broadcast], reply: Reply) -> list[Update]:
    """The updates of a reply, one for each message and about it, or the error that it tells of."""
    if reply.envelope is None:
        raise heard(client, reply.failure)
    try:
        updates = unseal(reply.envelope, Update)
    except RunError as error:
        raise RunError(f"site {client} sent {error}") from error
    subjects = [(u.client, u.task, u.round) for u in updates]
    if subjects != [(m.client, m.task, m.round) for m in asked]:
        raise RunError(f"site {client} answered something else than it was asked: {subjects[:3]}")
    return updates
