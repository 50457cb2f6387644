"""The server half: the one federated round, and the exchanges of messages that it consists of.

``experiment.session`` opens a server, enrols the clients and then calls :func:`play_round` once per
round; ``evaluate`` uses :func:`collect`. Nothing here may be specific to a method or a transport,
and no result may depend on the order in which replies arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from fedshift.base import seeds, tree
from fedshift.base.errors import RunError
from fedshift.base.tree import Tree
from fedshift.core.aggregate import WEIGHTINGS, bounded, weighted_mean
from fedshift.core.analysis import analysis
from fedshift.core.channel import Channel
from fedshift.core.message import Task, Update
from fedshift.core.method import Method
from fedshift.core.net import Net, Scope, batch_norm_buffers
from fedshift.core.part import Part
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
    """A server as it is before round 0, with the initial model that every client starts from."""
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
    """Send one message to each client and yield the checked replies in the order of sending.

    Clients with the most examples come first, so that parallel workers finish at about the same
    time. The order of arrival never matters: a reply that arrives early is held until its turn, so
    sums are taken in the same order under every transport.

    The tensors of a reply may be borrowed from the transport and are valid only until the next
    reply is requested; :func:`collect` copies them. The server's policy decides what happens if a
    reply is missing or invalid.
    """
    known = server.roster
    size = {client: known[client].examples if client in known else 0 for client in clients}
    order = sorted(size, key=lambda client: (-size[client], client))
    messages = [server.broadcast(task, client) for client in order]
    yield from answers(server, transport, messages, observer)


def collect(
    server: Server, transport: Transport, task: Task, clients: Iterable[str], observer: Observer
) -> list[Update]:
    """All replies of an :func:`exchange` as a list; borrowed tensors are copied."""
    replies = exchange(server, transport, task, clients, observer)
    return [update.own() if transport.reply_lifetime else update for update in replies]


def exchange_payloads(
    server: Server,
    transport: Transport,
    observer: Observer,
    part: Part,
    payloads: Mapping[str, Tree],
) -> dict[str, Tree]:
    """Send one payload per client on behalf of one part, outside training; replies by client.

    This is the ``ask`` that :meth:`Part.negotiate` and :meth:`Part.decode` receive. Clients that
    did not reply are missing from the result.
    """
    messages = [
        replace(server.broadcast("talk", client), payload=tree.prefixed(part.name, payload))
        for client, payload in sorted(payloads.items())
    ]
    replies = answers(server, transport, messages, observer)
    owned = (u.own() if transport.reply_lifetime else u for u in replies)
    return {u.client: tree.under(part.name, u.payload) for u in owned}


def enrol(server: Server, transport: Transport, clients: Iterable[str], observer: Observer) -> None:
    """Round 0: every client reports its number of examples and the parts' summaries of its data.

    Parts read the summaries in ``admit``, once; a part that does so needs those of all clients.
    """
    clients = list(clients)
    enrolments = collect(server, transport, "enrol", clients, observer)
    admitting = [p.name for p in server.method.parts if type(p).admit is not Part.admit]
    if admitting and len(enrolments) < len(clients):
        missing = ", ".join(sorted(set(clients) - {u.client for u in enrolments}))
        raise RunError(
            f"{len(enrolments)} of {len(clients)} sites enrolled, and {admitting[0]} needs the "
            f"summaries of all of them before round 1, that of {missing} too; wait for them with "
            "on_loss=wait",
            "on_loss=wait",
        )
    for part in server.method.parts:
        part.admit(server, enrolments)
    add_to_roster(server, enrolments)


def add_to_roster(server: Server, enrolments: Iterable[Update]) -> None:
    """Add clients to the roster, without their tensors, and note those that have kept state.

    The roster is replaced and never edited, so the record can tell by identity that it changed.
    """
    added = {
        u.client: Update(u.client, u.task, u.round, examples=u.examples, facts=u.facts, kept=u.kept)
        for u in enrolments
    }
    server.roster = server.roster | added
    server.visits |= {u.client: (u.round, u.round) for u in added.values() if u.kept}


def enrol_latecomers(server: Server, transport: Transport, observer: Observer) -> None:
    """Between rounds: ask the clients whose enrolment was lost to enrol now.

    That may fail again without consequence (``at_least=0``); they are asked before every round.
    """
    late = [
        server.broadcast("enrol", c)
        for c in (server.sites if len(server.sites) > len(server.roster) else ())
        if c not in server.roster
    ]
    if late:
        add_to_roster(server, answers(server, transport, late, observer, at_least=0))


def play_round(server: Server, transport: Transport, observer: Observer) -> list[Update]:
    """Run one federated round, the same for every method and transport; returns the updates.

    The order of a round:

    1. Clients that have not enrolled yet are asked again, then the round number is increased.
    2. The cohort is drawn, and channels negotiate with it (key exchange and the like).
    3. Each client of the cohort gets the model and the parts' payloads, trains, and replies.
    4. Replies are aggregated, either while they arrive or when all are there (see below).
    5. With ``bn=recompute`` the participants estimate BatchNorm statistics of the new model.
    6. Parts refine the model at the server; ``server.aggregated`` is the model before that.

    If only a weighted sum of the replies is needed (:func:`streams`), each reply is added to a
    running sum as it arrives and comes back without its tensors: memory does not grow with the
    cohort. Otherwise all replies are kept, copied from the transport's memory into a reply stack,
    and pass through ``merge``, the aggregator and ``personal``, in that order. Channels are undone
    first, the last one first: update by update as they arrive (``decode``) where possible, else
    all together (``decode_all``).
    """
    # Before the round number increases: training reads only state that is older than its round,
    # and it has to find what enrolment saved.
    enrol_latecomers(server, transport, observer)
    server.round += 1
    method, scenario = server.method, server.scenario
    drawn_from = server.cohort_secret or server.seed
    cohort = scenario.cohort(drawn_from, server.round, list(server.roster))
    cohort = negotiate(server, transport, cohort, observer)
    server.capped = {}
    # A generator: nothing is sent until it is iterated, below, under the server's own seed.
    replies = exchange(server, transport, "train", cohort, observer)
    server.participants = len(cohort)
    with seeds.fork(server.seed, server.round, "server"):
        if streams(server):
            updates = merge_arriving(server, replies, cohort)
        else:
            alone, together = decoding(method)
            arriving = (decoded(server, alone, reply) for reply in replies)
            updates = [*map(ReplyStack(len(cohort)).keep, arriving)]  # copies borrowed tensors
            server.participants = len(updates)
            seen: Sequence[Update] = updates
            for channel in together:
                ask = partial(exchange_payloads, server, transport, observer, channel)
                seen = channel.decode_all(server, seen, ask)
            for part in method.parts:
                part.merge(server, seen)
            server.shared = method.aggregate(server, seen)
            for client, entries in method.personal(server, seen).items():
                server.personal.save(client, server.round, {"net": entries})
        server.remember_visits(cohort, updates)
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
    """Let every channel exchange messages with the cohort; returns who takes part in training."""
    for channel in server.method.channels:
        ask = partial(exchange_payloads, server, transport, observer, channel)
        cohort = channel.negotiate(server, cohort, ask)
    return list(cohort)


def decoding(method: Method) -> tuple[list[Channel], list[Channel]]:
    """Channels in the order in which they are undone: the last one first.

    First those that take each update by itself, as it arrives; then, from the first one that needs
    all updates on, those that take all of them.
    """
    order = list(reversed(method.channels))
    alone = list(takewhile(lambda channel: not channel.decodes_together, order))
    return alone, order[len(alone) :]


def decoded(server: Server, channels: Sequence[Channel], update: Update) -> Update:
    """An update as it was before ``channels``."""
    for channel in channels:
        update = channel.decode(server, update)
    return update


def streams(server: Server) -> bool:
    """Whether the round needs nothing from the replies but their weighted sum.

    Not so if a part reads all updates, the rule is not a plain sum, entries are personal, or an
    analysis looks at single updates.
    """
    return (
        server.policy.on_loss != "skip"  # weights can be computed ahead only if all will reply
        and server.method.streams
        and server.method.aggregate.streams(server)
        and not server.keys(Scope.PERSONAL)
        and not any(analysis(name).reads_updates for name in server.scenario.analyses)
    )


def merge_arriving(server: Server, replies: Iterator[Update], cohort: list[str]) -> list[Update]:
    """Aggregate replies while they arrive, into ``server.shared``; returns their scalars.

    ``expected`` lists the roster in the order in which replies are yielded, because the weights are
    computed from it before the first reply is there. A borrowed reply is used at once and never
    kept, so nothing is copied.
    """
    expected = sorted((server.roster[c] for c in cohort), key=lambda u: (-u.examples, u.client))
    seen: list[Update] = []

    channels, _ = decoding(server.method)

    def passing() -> Iterator[Update]:
        for update in replies:
            seen.append(update.scalars_only())
            yield decoded(server, channels, update)

    server.shared = server.method.aggregate.stream(server, expected, passing())
    return seen


def recompute_statistics(
    server: Server, transport: Transport, cohort: Sequence[str], observer: Observer
) -> None:
    """Replace BatchNorm statistics by the weighted mean of the participants' own estimates.

    They are estimated with the aggregated weights, on each participant's training inputs. A
    participant replaces those that are private by its own.
    """
    if not server.statistics and not batch_norm_buffers(server.net) & server.keys(Scope.PRIVATE):
        return
    updates = collect(server, transport, "statistics", cohort, observer)
    weights = WEIGHTINGS[server.scenario.weights](server, updates)
    weights = bounded(weights, server.scenario.max_weight or 1.0)
    server.shared = server.shared | weighted_mean([u.shared for u in updates], weights)
