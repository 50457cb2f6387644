"""The client half of a round: handle one message at one site, from received model to reply.

Every transport calls :class:`Worker` with a message and gets an update back; the parts' client
hooks are called from here. A visit must never depend on how its message travelled, nor on an
earlier visit except through the client's own stored state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from fedshift.base import seeds, tree
from fedshift.base.errors import ConfigError, DivergedError, NotAllowedError, RunError
from fedshift.base.tree import Tree
from fedshift.core.client import Client
from fedshift.core.message import Broadcast, Task, Update
from fedshift.core.method import Method
from fedshift.core.net import (
    Net,
    Scope,
    batch_norm_buffers,
    by_scope,
    estimate_statistics,
    load,
)
from fedshift.core.objective import score
from fedshift.core.part import Scoring
from fedshift.core.payload import ModelSpec
from fedshift.core.scenario import Scenario
from fedshift.core.state import State, StateStore
from fedshift.data.federation import Site
from fedshift.data.samples import Samples
from fedshift.engine.attacks import hostile_sites
from fedshift.engine.inputs import InputGuard
from fedshift.engine.scored_once import ScoredOnce, scores_alike
from fedshift.engine.training import LocalTraining


@dataclass
class Worker:
    """One resident net and everything needed to visit any site; there is one per process.

    The net is built once and reused. A visit begins by copying every entry into it (see ``_open``),
    so nothing of the previous visit is left and no model is allocated per client. ``entries``
    refers to the net's own tensors and ``initial`` to a copy of them as they were before round 1.
    """

    method: Method
    scenario: Scenario
    seed: int
    net: Net
    sites: Mapping[str, Site]
    store: StateStore
    resources: dict[str, Samples] = field(default_factory=dict)  # allowed extra data, by resource
    label: str = "method"  # names the method in error messages

    def __post_init__(self) -> None:
        self.entries = self.net.state_dict()  # the net's own tensors; a copy into them loads it
        self.device = next(iter(self.entries.values())).device
        self.initial = tree.clone(self.entries)
        self.scopes = self.method.scopes(self.net, bn_local=self.scenario.bn == "local")
        self.previous = any("previous" in d.references for d in self.method.declared)
        self._keys = by_scope(self.scopes)
        self.uploads = self.method.uploads(ModelSpec.of(self.net, self.scenario, self.scopes))
        self.inputs = InputGuard(self.net.shape, self.device)
        self.hostile = hostile_sites(self.scenario, self.seed, self.sites)
        self.training = LocalTraining(
            self.method, self.scenario, self.net, self.inputs, self.keys(Scope.FIXED)
        )
        self.training.hostile = self.hostile
        own = self.keys(Scope.PRIVATE) | self.keys(Scope.PERSONAL)
        trained = self.scenario.keeps_trained  # each client's own model may be scored
        self.alike = scores_alike(self.method) and not own and not trained
        self.once = ScoredOnce()

    def keys(self, scope: Scope) -> frozenset[str]:
        """Names of the entries whose scope is ``scope``."""
        return self._keys[scope]

    def visit(self, message: Broadcast) -> Update:
        """Handle one message at the client it is addressed to, and return the reply.

        The order of a visit: read the client's stored state; copy the received and the private
        entries into the net; carry out the task with torch's global generator seeded by (seed,
        round, client, task); return the update.

        The weights in the reply may be the net's own tensors, which saves a copy of the model per
        visit: the server usually adds a reply to a running sum at once and never needs it again.
        The next visit overwrites them, so whoever keeps a reply must copy it first
        (``Update.own``); a transport declares this in its ``reply_lifetime``.

        Training in round t, and what parts talk about beside it, reads the newest state older than
        t, so a resumed run never sees what an interrupted round t has left. All other tasks also
        see the state of round t. It must be the state that the server knows of.
        """
        before = message.round + (message.task not in ("train", "talk"))
        self._require_state(message, before)
        kept = self.store.load(message.client, before=before)
        state = defaultdict(dict, {k: tree.to(v, self.device) for k, v in kept.items()})
        client = self._open(message, state)
        tasks = {
            "enrol": self._enrol,
            "train": self._train,
            "statistics": self._statistics,
            "score": self._score,
            "assess": self._assess,
            "donate": self._donate,
            "talk": self._talk,  # a part's own exchange, outside training
        }
        with seeds.fork(self.seed, message.round, message.client, message.task):
            reply = tasks[message.task](client, message)
        return reply if self.device.type == "cpu" else reply.to_cpu()

    def _require_state(self, message: Broadcast, before: int) -> None:
        """Raise if the client's state is missing, or of another round than the server knows.

        It may be newer than the last round that the server has a reply of, up to the last one in
        which the client was asked: it trained, and its reply was lost.
        """
        if message.visited is None or message.task == "enrol":
            return
        (least, most), found = message.visited, self.store.newest(message.client, before=before)
        if least <= found <= max(least, most):
            return
        held = f"has a state of round {found}" if found >= 0 else "has no state"
        wanted = f"one of round {least}" if least >= 0 else "none"
        raise RunError(
            f"client {message.client} {held}, and the server expects {wanted} before round "
            f"{before}: it was deleted or replaced; restore it, or delete the run and repeat it"
        )

    def _require_declared(self, client: Client, task: Task, payload: Tree) -> None:
        """Raise if payload is about to leave that is not as its part declares."""
        if problem := self.uploads[task].problem(payload):
            raise ConfigError(
                f"{self._where(client)}: {problem}; name what leaves a site in the part's uploads"
            )

    def _open(self, message: Broadcast, state: State) -> Client:
        """Copy this visit's model into the net, in place, and make the ``Client`` for the hooks.

        Later sources win: initial entries, then what the server sent, then the client's private
        entries (``state["net"]``). The initial ones cover every entry, so nothing of the last visit
        is left.
        """
        sent = message.shared | message.personal | state.get("net", {})
        received = self.initial | tree.to(sent, self.device)
        load(self.entries, received)
        return Client(
            self.sites[message.client],
            self.net,
            self.scenario,
            self.seed,
            message.round,
            received,
            self.initial,
            frozenset(message.shared),
            tree.to(message.payload, self.device),
            state,
            self.resources,
        )

    def _enrol(self, client: Client, message: Broadcast) -> Update:
        """Round 0: report the number of examples and each part's summary of the client's data.

        The domain is reported only where the scenario allows ``domain_ids``.
        """
        known = "domain_ids" in self.scenario.allow
        summaries = tree.clone(self.method.gather(lambda part: part.enrol(client)))
        self._refuse_inputs(summaries, client, "its summary")
        self._require_declared(client, "enrol", summaries)
        if kept := self._kept(client):
            self.store.save(client.id, message.round, kept)
        return Update(
            message.client,
            message.task,
            message.round,
            payload=summaries,
            examples=client.examples,
            facts={"domain": client.site.domain} if known else {},
            kept=bool(kept),
        )

    def _train(self, client: Client, message: Broadcast) -> Update:
        """Train and reply: probe, begin, phases, finish, check, encode, save the state.

        The order must hold. Parts probe the received model before anything changes it. The finite
        check comes before the state is saved, so a visit that diverged never replaces a good state.
        The state is saved last, with what channels have written into it (the residual of a codec);
        what they do to the update never reaches the client's own copy of the weights.
        """
        self.inputs.begin()
        probed = self._probe(client)
        metrics = self.training.run(client).means(self._where(client))
        payload = tree.merge([probed, self.method.gather(lambda part: part.finish(client))])
        final = tree.contiguous(self.entries)  # a copy only of entries that are not contiguous
        self._require_finite(client, final)
        update = Update(
            message.client,
            message.task,
            message.round,
            shared=tree.pick(final, self._uploaded()),
            personal=tree.pick(final, self.keys(Scope.PERSONAL)),
            payload=tree.clone(payload),
            examples=client.examples,
            steps=client.steps,
            metrics=metrics,
        )
        self._refuse_inputs(final, client, "its net")
        self._refuse_inputs(update.payload, client, "its payload")
        if self.hostile:
            update = self.hostile.forge(client, update)
        encoded = self.method.encode(client, update)
        self._require_declared(client, "train", encoded.payload)
        self._remember(client, final)
        newest = self.store.newest(client.id, before=client.round + 1)
        return replace(encoded, kept=newest == client.round)

    def _uploaded(self) -> frozenset[str]:
        """Shared entries, except BatchNorm statistics that are recomputed after aggregation."""
        skipped = batch_norm_buffers(self.net) if self.scenario.bn == "recompute" else set()
        return self.keys(Scope.SHARED) - skipped

    def _probe(self, client: Client) -> Tree:
        """Collect every part's measurement of the received model, and leave no trace of it.

        A probe may train the net or draw random numbers, yet training must give the same result
        with and without it. So the results are copied, every entry of the net is loaded again, the
        visit's generators are dropped (each is derived anew when next used), and torch's global
        generator is restored by ``seeds.fork``. ``client.state`` is not restored: a probe must not
        write it.
        """
        if not self.method.overriding("probe"):
            return {}
        with seeds.fork(self.seed, client.round, client.id, "probe"):
            found = self.method.gather(lambda part: part.probe(client))
        found = tree.clone(found)
        load(self.entries, client.received)
        client._generators.clear()  # noqa: SLF001  made by this visit
        return found

    def _refuse_inputs(self, entries: Tree, client: Client, what: str) -> None:
        """Raise if what outlives the visit contains an input; only a part can have put it there."""
        if self.method.parts and entries:
            self.inputs.refuse(entries, client, f"{self._where(client)}: {what}")

    def _where(self, client: Client) -> str:
        return f"{self.label}, client {client.id}, round {client.round}"

    def _require_finite(self, client: Client, final: Tree) -> None:
        """Raise if a trained entry is infinite or NaN, naming method, client, round and entry."""
        floats = {k: v for k, v in final.items() if v.is_floating_point()}
        found, scale = torch.zeros(1, device=self.device), torch.ones(1, device=self.device)
        torch._amp_foreach_non_finite_check_and_unscale_([*floats.values()], found, scale)
        if not found:  # one fused kernel, in a third of the time of summing every entry
            return
        bad = next((k for k, v in floats.items() if not v.isfinite().all()), "the weights")
        raise DivergedError(
            f"{self._where(client)}: {bad} is not finite after training; lower lr, or set clip"
        )

    def _remember(self, client: Client, final: Tree) -> None:
        """Save the client's state in one call, after everything that can fail.

        It holds what parts wrote, the private entries and, where a part or the scenario needs them,
        the whole trained net. All are copies: ``final`` may be the net's own tensors.
        """
        own = {"net": tree.pick(final, self.keys(Scope.PRIVATE))}
        fixed = self.keys(Scope.FIXED)  # every net has them already
        final = {k: v for k, v in final.items() if k not in fixed} if fixed else final
        if self.previous:
            own["previous"] = final
        if self.scenario.keeps_trained:
            own["trained"] = final
        own = {name: tree.clone(entries) for name, entries in own.items() if entries}
        self.store.save(client.id, client.round, self._kept(client) | own)

    def _kept(self, client: Client) -> dict[str, Tree]:
        """A copy of the client's state, without empty entries; refuses the site's inputs in it."""
        for name, entries in client.state.items():
            self._refuse_inputs(entries, client, f"client.state[{name!r}]")
        return {name: tree.clone(entries) for name, entries in client.state.items() if entries}

    def _statistics(self, client: Client, message: Broadcast) -> Update:
        """BatchNorm statistics of the received model on this client's training inputs.

        Those that are shared are sent; those that are private replace the client's own.
        """
        estimate_statistics(self.net, client.site.data.train.chunks(self.scenario.batch_size))
        statistics = batch_norm_buffers(self.net)
        if private := statistics & self.keys(Scope.PRIVATE):
            own = client.state.get("net", {}) | tree.pick(self.entries, private)
            self.store.save(client.id, client.round, {**client.state, "net": tree.clone(own)})
        shared = tree.clone(tree.pick(self.entries, statistics & self.keys(Scope.SHARED)))
        return Update(message.client, message.task, message.round, shared, examples=client.examples)

    def _score(self, client: Client, message: Broadcast) -> Update:
        """Score the client's own model on its own validation and test samples.

        That is the received model with the client's personal and private entries. With
        ``scored="trained"``, and under the protocol ``personal-trained``, it is the model as it was
        after the client's last training.
        """
        metrics: dict[str, float] = {}
        for protocol, head in self.scenario.personal_scores.items():
            if protocol == "personal-trained" or self.scenario.scored == "trained":
                load(self.entries, client.received | client.state.get("trained", {}))
            found = self._count(client, client)
            metrics |= {f"{head}{key}": value for key, value in found.items()}
        return self._scores(message, client, metrics)

    def _assess(self, client: Client, message: Broadcast) -> Update:
        """Score the received model with this client's private entries, for the protocol ``global``.

        Parts predict without the client (None), so nothing else of its state is used.
        """
        return self._scores(message, client, self._count(client, None))

    def _scores(self, message: Broadcast, client: Client, metrics: dict[str, float]) -> Update:
        return Update(
            message.client, message.task, message.round, examples=client.examples, metrics=metrics
        )

    def _count(self, client: Client, scored_as: Client | None) -> dict[str, float]:
        """What the objective measures on the validation and test samples."""
        draw = partial(seeds.generator, self.seed, client.round, client.id, "scoring")
        scoring = Scoring(scored_as, client.inbox, draw)
        predict = partial(self.method.predict, self.net, scoring)
        self.net.eval()
        metrics: dict[str, float] = {}
        for split in ("val", "test"):
            samples, cells = getattr(client.site.data, split), split == "test"
            counted = partial(
                score, predict, samples, self.scenario.task, cells=cells and self.scenario.confusion
            )
            found = self.once.score(self.entries, samples, counted) if self.alike else counted()
            metrics |= {f"{split}/{key}": value for key, value in found.items()}
        return metrics

    def _talk(self, client: Client, message: Broadcast) -> Update:
        """Reply to the parts that sent a payload outside training."""
        payload = self.method.reply(client)
        self._require_declared(client, "talk", payload)
        return Update(
            message.client, message.task, message.round, payload=payload, examples=client.examples
        )

    def _donate(self, client: Client, message: Broadcast) -> Update:
        """The client's private entries, for scenarios that give their mean to new sites.

        Refused in any other scenario and under a privacy part, whatever the server asks.
        """
        private = next((p.name for p in self.method.parts if p.gives_privacy), None)
        if private or self.scenario.private_at_new_site != "mean":
            why = private or f"private_at_new_site={self.scenario.private_at_new_site}"
            raise NotAllowedError(
                f"client {client.id}: the server asks for private entries, and {why} keeps them "
                "at the site; leave it out, or set private_at_new_site=mean"
            )
        own = tree.pick(client.received, self.keys(Scope.PRIVATE))
        return Update(
            message.client, message.task, message.round, personal=own, examples=client.examples
        )
