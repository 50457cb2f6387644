"""The server's half: what a part sees there, and THE federated round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from fedshift.base import seeds, tree
from fedshift.base.errors import RunError
from fedshift.base.tree import Tree
from fedshift.core.aggregate import WEIGHTINGS, weighted_mean
from fedshift.core.message import Broadcast, Task, Update
from fedshift.core.method import Method, Part
from fedshift.core.net import Net, Scope
from fedshift.core.reply_stack import ReplyStack
from fedshift.core.scenario import Scenario
from fedshift.core.server import Observer, Server, Transport
from fedshift.core.state import StateStore
from fedshift.data.samples import Samples
from fedshift.engine.replies import answers


def open_server(
    method: Method,
    scenario: Scenario,
    seed: int,
    net: Net,
    resources: dict[str, Samples],
    personal: StateStore,
) -> Server:
    """A server before round 0, around the net that every client starts from as well."""
    scopes = method.scopes(net, bn_local=scenario.bn == "local")
    initial = tree.clone(net.state_dict())
    shared = {k: v for k, v in initial.items() if scopes[k] is Scope.SHARED}
    trained = frozenset(k for k, _ in net.named_parameters()) & shared.keys()
    return Server(
        method, scenario, seed, net, shared, initial, scopes, trained, personal, resources=resources
    )


def exchange(
    server: Server, transport: Transport, task: Task, clients: Iterable[str], observer: Observer
) -> Iterator[Update]:
    """Send one message to each client, the longest work first; replies in the order of the mail.

    Arrival never matters: a reply that comes early is held until its turn. A reply's tensors may
    be borrowed from the transport until the next one is asked for; :func:`collect` owns them.
    Replies are checked, and the server's policy decides about those that are missing or bad.
    """
    known = server.roster
    size = {client: known[client].examples if client in known else 0 for client in clients}
    order = sorted(size, key=lambda client: (-size[client], client))
    messages = [server.broadcast(task, client) for client in order]
    yield from answers(server, transport, messages, observer)


def collect(
    server: Server, transport: Transport, task: Task, clients: Iterable[str], observer: Observer
) -> list[Update]:
    """All replies of an :func:`exchange`, in memory of their own."""
    replies = exchange(server, transport, task, clients, observer)
    return [update.own() if transport.reply_lifetime else update for update in replies]


def exchange_payloads(
    server: Server,
    transport: Transport,
    observer: Observer,
    part: Part,
    payloads: Mapping[str, Tree],
) -> dict[str, Tree]:
    """An exchange of one part beside training: a letter to each client, and who answered what."""
    messages = [
        Broadcast(client, "talk", server.round, payload=tree.prefixed(part.name, payload))
        for client, payload in sorted(payloads.items())
    ]
    replies = answers(server, transport, messages, observer)
    owned = (u.own() if transport.reply_lifetime else u for u in replies)
    return {u.client: tree.under(part.name, u.payload) for u in owned}


def enrol(server: Server, transport: Transport, clients: Iterable[str], observer: Observer) -> None:
    """Round 0: every client introduces itself once."""
    clients = list(clients)
    enrolments = collect(server, transport, "enrol", clients, observer)
    admitting = [p.name for p in server.method.parts if type(p).admit is not Part.admit]
    if admitting and len(enrolments) < len(clients):
        raise RunError(
            f"{len(enrolments)} of {len(clients)} sites enrolled, and {admitting[0]} needs the "
            "summaries of all of them before round 1; wait for them with on_loss=wait",
            "on_loss=wait",
        )
    for part in server.method.parts:
        part.admit(server, enrolments)
    add_to_roster(server, enrolments)


def add_to_roster(server: Server, enrolments: Iterable[Update]) -> None:
    """Put clients on the roster, which is replaced, never edited."""
    server.roster = server.roster | {
        u.client: Update(u.client, u.task, u.round, examples=u.examples, facts=u.facts)
        for u in enrolments
    }


def enrol_latecomers(server: Server, transport: Transport, observer: Observer) -> None:
    """Between rounds: ask the clients that were lost in their enrolment once more."""
    late = [
        server.broadcast("enrol", c)
        for c in (server.sites if len(server.sites) > len(server.roster) else ())
        if c not in server.roster
    ]
    if late:
        add_to_roster(server, answers(server, transport, late, observer, at_least=0))


def play_round(server: Server, transport: Transport, observer: Observer) -> list[Update]:
    """One round, the same for every method and every transport; the replies come back.

    Where nobody asks for all replies at once they are summed as they arrive, and come back without
    their tensors: memory does not grow with the cohort.
    """
    enrol_latecomers(server, transport, observer)  # before the round: it is to find their state
    server.round += 1
    method, scenario = server.method, server.scenario
    cohort = scenario.cohort(server.seed, server.round, list(server.roster))
    cohort = negotiate(server, transport, cohort, observer)
    replies = exchange(server, transport, "train", cohort, observer)
    server.participants = len(cohort)
    with seeds.fork(server.seed, server.round, "server"):
        if streams(server):
            updates = merge_arriving(server, replies, cohort)
        else:
            updates = [*map(ReplyStack(len(cohort)).keep, replies)]
            server.participants = len(updates)
            seen: Sequence[Update] = updates
            for part in reversed(method.parts):
                seen = part.decode(
                    server, seen, partial(exchange_payloads, server, transport, observer, part)
                )
            for part in method.parts:
                part.merge(server, seen)
            server.shared = method.aggregate(server, seen)
            for client, entries in method.personal(server, seen).items():
                server.personal.save(client, server.round, {"net": entries})
        if scenario.bn == "recompute":
            recompute_statistics(server, transport, [u.client for u in updates], observer)
        server.aggregated = server.shared
        for part in method.parts:
            part.refine(server)
        server.shared = tree.to(server.shared, "cpu")
    return updates


def negotiate(
    server: Server, transport: Transport, cohort: Sequence[str], observer: Observer
) -> list[str]:
    """What the parts have to settle with a cohort before its mail; who goes on."""
    for part in server.method.parts:
        cohort = part.negotiate(
            server, cohort, partial(exchange_payloads, server, transport, observer, part)
        )
    return list(cohort)


def streams(server: Server) -> bool:
    """Whether a round needs no more of the replies than their running sum."""
    return (
        server.policy.on_loss != "skip"  # the weights are known ahead only if everybody answers
        and server.method.streams
        and server.method.aggregate.streams(server)
        and not server.keys(Scope.PERSONAL)
        and not server.scenario.analyses
    )


def merge_arriving(server: Server, replies: Iterator[Update], cohort: list[str]) -> list[Update]:
    """Aggregate replies while they arrive, in place; what is left of them is scalars."""
    expected = sorted((server.roster[c] for c in cohort), key=lambda u: (-u.examples, u.client))
    seen: list[Update] = []

    def passing() -> Iterator[Update]:
        for update in replies:
            seen.append(update.scalars_only())
            yield update

    server.shared = server.method.aggregate.stream(server, expected, passing())
    return seen


def recompute_statistics(
    server: Server, transport: Transport, cohort: Sequence[str], observer: Observer
) -> None:
    """BatchNorm statistics of the aggregated model, averaged over the participants' estimates."""
    if not server.statistics:
        return
    updates = collect(server, transport, "statistics", cohort, observer)
    weights = WEIGHTINGS[server.scenario.weights](server, updates)
    server.shared = server.shared | weighted_mean([u.shared for u in updates], weights)
