"""Evaluation protocols: which model is scored, on which samples, and where.

- ``personal``: each client's own model on the test samples of its own domains, at the client: the
  model that it has after the round, which is what it would use.
- ``personal-trained``: the same with the model as the client trained it, before aggregation. Some
  papers report it for personal methods; both moments can be scored in one run, and never mix.
- ``global``: one model for everybody (:func:`assemble`) on every training domain, at the server.
  If a part declares ``scored_at_sites``, each site scores the received model with its own private
  entries instead, and a domain's accuracy is the mean over its sites.
- ``unseen``: the same one model on a domain that no client holds, at the server.
- ``unseen-adapted``: the same after the parts have adapted it to unlabelled inputs of that domain.

``experiment.session`` calls :func:`evaluate` after a round, or its two halves where scoring at the
sites is piggybacked on the next round. Evaluation must never change the run: no model, no state and
no random number of training may depend on whether a round was scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import partial

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError
from fedshift.base.tree import Tree
from fedshift.core.aggregate import Uniform, weighted_mean
from fedshift.core.message import Task, Update
from fedshift.core.method import Method
from fedshift.core.net import Net, Scope, load
from fedshift.core.objective import score, scores_of
from fedshift.core.scenario import Scenario
from fedshift.core.server import Observer, Server, Transport
from fedshift.data.federation import Federation, Splits
from fedshift.data.samples import Samples
from fedshift.engine.round import collect
from fedshift.evaluate.metrics import Count, Metrics

Scored = dict[str, dict[str, Metrics]]  # protocol -> "val" and "test"


def evaluate(
    server: Server, transport: Transport, federation: Federation, observer: Observer
) -> Scored:
    """Score the current model under every protocol of the scenario; changes nothing.

    A protocol is left out if the method has no model for it: ``global`` and the unseen ones need a
    model for a new site, and private entries may have none (``private_at_new_site``).
    """
    out = at_server(server, transport, federation, observer)
    for task in dict.fromkeys(at_sites(server).values()):
        updates = collect(server, transport, task, sorted(server.roster), observer)
        out |= from_sites(server, task, updates, federation)
    return {name: out[name] for name in server.scenario.protocols if name in out}


def at_sites(server: Server) -> dict[str, Task]:
    """The protocols that are scored at the sites, each with the task that requests it."""
    return scored_at_sites(server.method, server.scenario)


def scored_at_sites(method: Method, scenario: Scenario) -> dict[str, Task]:
    """The same of a method in a scenario, before there is a server."""
    if method.pools_sites:
        return {}
    out: dict[str, Task] = dict.fromkeys(scenario.personal_scores, "score")
    if "global" in scenario.protocols and any(d.scored_at_sites for d in method.declared):
        out["global"] = "assess"
    return out


def require_a_score(name: str, method: Method, scenario: Scenario, net: Net) -> None:
    """Raise if a method has no model for any of the protocols, so that nothing could be scored."""
    if method.pools_sites or scored_at_sites(method, scenario):
        return
    scopes = method.scopes(net, bn_local=scenario.bn == "local")
    private = [name for name, scope in scopes.items() if scope is Scope.PRIVATE]
    way = scenario.private_at_new_site
    if private and (way == "refuse" or (way == "none" and not only_necks(private))):
        protocols = " and ".join(scenario.protocols)
        raise ConfigError(
            f"{name} keeps entries at each site, such as {private[0]}, so there is no one "
            f"model, and {protocols} asks for one; say what stands for them (mean: their mean, "
            "which sites then send; initial), or score personal",
            "scenario.private_at_new_site=mean",
        )


def at_server(
    server: Server, transport: Transport, federation: Federation, observer: Observer
) -> Scored:
    """The protocols that are scored at the server, all with one assembled model.

    ``server.net`` is scratch memory here; modules that were skipped in it are enabled again.
    """
    if not set(server.scenario.protocols) - at_sites(server).keys():
        return {}
    model = assemble(server, transport, observer)
    out = one_model(server, federation, model) if model is not None else {}
    server.net.skipped = frozenset()
    return out


def from_sites(server: Server, task: Task, updates: list[Update], federation: Federation) -> Scored:
    """What the replies to one task say, under each protocol that it serves."""
    heads, main = server.scenario.personal_scores, server.scenario.task.main
    return {
        protocol: reported(updates, federation, main, heads.get(protocol, ""))
        for protocol, asked in at_sites(server).items()
        if asked == task
    }


def reported(
    updates: list[Update], federation: Federation, main: str, head: str = ""
) -> dict[str, Metrics]:
    """Metrics from the numbers that the clients reported; ``main`` is the objective's measure.

    Clients are put in the order of the federation, so that domains appear as in the scenario.
    ``head`` is what names of splits begin with.
    """
    order = {client: i for i, client in enumerate(federation.sites)}  # domains as the scenario's
    ordered = sorted(updates, key=lambda u: order[u.client])
    out = {}
    for split in ("val", "test"):
        counts = [
            Count.of(
                scores_of(u.metrics, f"{head}{split}"),
                main,
                u.client,
                federation.sites[u.client].domain,
                u.examples,
            )
            for u in ordered
        ]
        out[split] = Metrics.of(counts)
    return out


def assemble(server: Server, transport: Transport, observer: Observer) -> Tree | None:
    """One model for everybody: shared entries, the mean of personal ones, and allowed private ones.

    What replaces the private entries, which the server does not have, is up to the scenario's
    ``private_at_new_site``: nothing (``refuse``: there is no such model, None), the net without the
    modules they belong to (``none``), their initial values (``initial``), or the mean over all
    clients, which then have to send them (``mean``).
    """
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


def only_necks(private: Iterable[str]) -> bool:
    """Whether private entries are all of modules that parts added."""
    return all(key.startswith("extra.") for key in private)


def leave_out_necks(net: Net, private: Set[str]) -> bool:
    """Let ``net`` skip the modules that parts added and whose entries are private, in place.

    False if other entries are private too: without them the net cannot run.
    """
    if not only_necks(private):
        return False
    net.skipped = frozenset(key.split(".")[1] for key in private)
    return True


def one_model(server: Server, federation: Federation, model: Tree) -> Scored:
    """Score one model on every training domain, and on the unseen one before and after adaptation.

    Validation metrics are always those of the training domains, also for the unseen protocols: the
    choice of a round must never look at the unseen domain. Adaptation changes ``server.net`` in
    place and therefore comes last. Without a part that adapts, both unseen protocols are equal.
    """
    wanted = server.scenario.protocols
    load(server.net, model)
    seen = {"val": count_domains(server, federation.domains, "val")}
    if "global" in wanted or server.method.pools_sites:
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
    if server.method.pools_sites:  # one model, which is also every site's own
        out |= dict.fromkeys(server.scenario.personal_scores, seen)
    return out


def adapt(server: Server, unlabelled: Samples) -> None:
    """Let every part adapt ``server.net``, in place, to the unlabelled inputs of a new site."""
    scoring = server.scoring()
    with seeds.fork(server.seed, server.round, "adapt"):
        for part in server.method.parts:
            part.adapt(server.net, unlabelled, scoring)


def count_domains(server: Server, domains: Mapping[str, Splits], split: str) -> Metrics:
    """Metrics of ``server.net`` on one split of each domain."""
    server.net.eval()
    predict = partial(server.method.predict, server.net, server.scoring())
    task, cells = server.scenario.task, server.scenario.confusion and split == "test"
    counts = []
    for name, splits in domains.items():
        samples: Samples = getattr(splits, split)
        found = score(predict, samples, task, cells=cells)
        counts.append(Count.of(found, task.main, name, name, len(samples)))
    return Metrics.of(counts)
