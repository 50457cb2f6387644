"""Who is scored on what: own-domain personal, global on every domain, unseen, unseen-adapted."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial

from fedshift.base import seeds, tree
from fedshift.base.tree import Tree
from fedshift.core.aggregate import Uniform, weighted_mean
from fedshift.core.message import Task, Update
from fedshift.core.net import Net, Scope, load
from fedshift.core.objective import score
from fedshift.core.server import Observer, Server, Transport
from fedshift.data.federation import Federation, Splits
from fedshift.data.samples import Samples
from fedshift.engine.round import collect
from fedshift.evaluate.metrics import Count, Metrics

Scored = dict[str, dict[str, Metrics]]  # protocol -> "val" and "test"


def evaluate(
    server: Server, transport: Transport, federation: Federation, observer: Observer
) -> Scored:
    """Every protocol of the scenario on the current model; deterministic, leaves no trace.

    ``global`` asks the clients of each domain where a part keeps its entries at home: the received
    model with each client's own entries, averaged over the domain's clients.
    A protocol without an answer (``global`` for a method with private entries of which the
    scenario gives a new site none) is left out.
    """
    out = at_server(server, transport, federation, observer)
    for name, task in at_sites(server).items():
        updates = collect(server, transport, task, sorted(server.roster), observer)
        out[name] = personal(updates, federation)
    return {name: out[name] for name in server.scenario.protocols if name in out}


def at_sites(server: Server) -> dict[str, Task]:
    """Protocols that the sites count for themselves, each with the task that asks them to."""
    wanted = server.scenario.protocols
    out: dict[str, Task] = {"personal": "score"} if "personal" in wanted else {}
    if "global" in wanted and any(d.scored_at_sites for d in server.method.declared):
        out["global"] = "assess"
    return out


def at_server(
    server: Server, transport: Transport, federation: Federation, observer: Observer
) -> Scored:
    """The other protocols, which look at one model."""
    if not set(server.scenario.protocols) - {"personal"} - at_sites(server).keys():
        return {}
    model = assemble(server, transport, observer)
    out = one_model(server, federation, model) if model is not None else {}
    server.net.skipped = frozenset()
    return out


def personal(updates: list[Update], federation: Federation) -> dict[str, Metrics]:
    """Each client's own model on its own samples; the client did the counting."""
    order = {client: i for i, client in enumerate(federation.sites)}  # domains as the scenario's
    out = {}
    for split in ("val", "test"):
        counts = [
            Count(
                u.client,
                federation.sites[u.client].domain,
                u.metrics[f"{split}/right"],
                u.metrics[f"{split}/count"],
                u.metrics[f"{split}/loss"],
                weight=u.examples,
            )
            for u in sorted(updates, key=lambda u: order[u.client])
        ]
        out[split] = Metrics.of(counts)
    return out


def assemble(server: Server, transport: Transport, observer: Observer) -> Tree | None:
    """One model for everybody: shared entries, mean of the personal ones, granted private ones."""
    clients = sorted(server.roster)
    trees = (server.personal_of(c) for c in clients)
    model = server.shared | weighted_mean(trees, Uniform()(server, list(server.roster.values())))
    private = server.keys(Scope.PRIVATE)
    if not private:
        return model
    if server.scenario.private_at_new_site == "refuse":
        return None
    if server.scenario.private_at_new_site == "none":
        return model if leave_out_necks(server.net, private) else None
    if server.scenario.private_at_new_site == "initial":
        return model | tree.pick(server.initial, private)
    donated = collect(server, transport, "donate", clients, observer)
    return model | weighted_mean([u.personal for u in donated], Uniform()(server, donated))


def leave_out_necks(net: Net, private: Set[str]) -> bool:
    """Let ``net`` skip what parts added and keep private; False if more than that is private."""
    if any(not key.startswith("extra.") for key in private):
        return False
    net.skipped = frozenset(key.split(".")[1] for key in private)
    return True


def one_model(server: Server, federation: Federation, model: Tree) -> Scored:
    """The model on every training domain, and on the unseen one as it is and adapted."""
    wanted = server.scenario.protocols
    load(server.net, model)
    seen = {"val": count_domains(server, federation.domains, "val")}
    if "global" in wanted:
        seen["test"] = count_domains(server, federation.domains, "test")
    out: Scored = {"global": seen}
    if federation.unseen is not None and any(p.startswith("unseen") for p in wanted):
        name = str(server.scenario.unseen)
        target = {name: federation.unseen}
        plain = {"val": seen["val"], "test": count_domains(server, target, "test")}
        adapted = plain
        if server.method.overriding("adapt"):
            adapt(server, federation.unseen.inputs)
            adapted = {"val": seen["val"], "test": count_domains(server, target, "test")}
        out |= {"unseen": plain, "unseen-adapted": adapted}
    return out


def adapt(server: Server, unlabelled: Samples) -> None:
    """Let every part fit ``server.net``, in place, to a new site's inputs."""
    with seeds.fork(server.seed, server.round, "adapt"):
        for part in server.method.parts:
            part.adapt(server.net, unlabelled)


def count_domains(server: Server, domains: Mapping[str, Splits], split: str) -> Metrics:
    """What ``server.net`` gets right in each domain."""
    server.net.eval()
    predict = partial(server.method.predict, server.net, client=None)
    counts = []
    for name, splits in domains.items():
        samples: Samples = getattr(splits, split)
        counts.append(Count(name, name, **score(predict, samples), weight=len(samples)))
    return Metrics.of(counts)
