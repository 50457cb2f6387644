"""The client half of a round: handle one message at one site, from received model to reply.

Every transport calls :class:`Worker` with a message and gets an update back; the parts' client
hooks are called from here. A visit must never depend on how its message travelled, nor on an
earlier visit except through the client's own stored state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift.base import seeds, tree
from fedshift.base.errors import DivergedError
from fedshift.base.tree import Tree
from fedshift.core.client import Client
from fedshift.core.loop import (
    Batch,
    Log,
    Step,
    Turn,
    descend,
    optimiser_state,
    restore_optimiser,
    shuffled_rows,
)
from fedshift.core.message import Broadcast, Update
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
from fedshift.core.part import Named, Phase, Player, through_net, whole_net
from fedshift.core.scenario import Scenario
from fedshift.core.state import State, StateStore
from fedshift.data.augment import PRESETS, apply
from fedshift.data.federation import Site
from fedshift.data.samples import Samples
from fedshift.engine.attacks import hostile_sites


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
        self.named = dict(self.net.named_parameters())
        self.device = next(iter(self.entries.values())).device
        self.initial = tree.clone(self.entries)
        self.scopes = self.method.scopes(self.net, bn_local=self.scenario.bn == "local")
        self.previous = any("previous" in d.references for d in self.method.declared)
        self._keys = by_scope(self.scopes)
        self.hostile = hostile_sites(self.scenario, self.seed, self.sites)
        self.acting = {
            h: self.method.overriding(h) for h in ("probe", "batch", "loss", "edit_gradients")
        }

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

        Training in round t reads the newest state older than t, so a resumed run never sees what an
        interrupted round t has left. All other tasks also see the state of round t.
        """
        kept = self.store.load(message.client, before=message.round + (message.task != "train"))
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
        if kept := self._kept(client):
            self.store.save(client.id, message.round, kept)
        return Update(
            message.client,
            message.task,
            message.round,
            payload=summaries,
            examples=client.examples,
            facts={"domain": client.site.domain} if known else {},
        )

    def _train(self, client: Client, message: Broadcast) -> Update:
        """Train and reply: probe, begin, phases, finish, check, encode, save the state.

        The order must hold. Parts probe the received model before anything changes it. The finite
        check comes before the state is saved, so a visit that diverged never replaces a good state.
        The state is saved last, with what channels have written into it (the residual of a codec);
        what they do to the update never reaches the client's own copy of the weights.
        """
        probed = self._probe(client)
        for part in self.method.parts:
            part.begin(client)
        log = Log()
        for phase in self.method.phases(client):
            self._phase(client, phase, log)
        metrics = log.means(self._where(client))
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
        if self.hostile:
            update = self.hostile.forge(client, update)
        encoded = self.method.encode(client, update)
        self._remember(client, final)
        return encoded

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
        if not self.acting["probe"]:
            return {}
        with seeds.fork(self.seed, client.round, client.id, "probe"):
            found = self.method.gather(lambda part: part.probe(client))
        found = tree.clone(found)
        load(self.entries, client.received)
        client._generators.clear()  # noqa: SLF001  made by this visit
        return found

    def _phase(self, client: Client, phase: Phase, log: Log) -> None:
        """Train the net for one phase, in place, and add to ``client.steps``.

        If no part changes batches, losses or gradients and the only player uses the plain forward
        pass, each batch sees exactly one forward pass. Then ``descend`` need not prevent BatchNorm
        statistics from being updated more than once per batch (``one_forward``).
        """
        turns = [self._turn(client, player) for player in phase.players]
        keep = self.scenario.optimiser_state == "keep"
        for turn in turns if keep else ():
            restore_optimiser(turn, client.state["optimiser"])
        once = not any(self.acting[hook] for hook in ("batch", "loss", "edit_gradients"))
        once &= len(turns) == 1 and phase.players[0].forward is through_net
        descend(self.net, self._batches(client, phase), turns, log, one_forward=once)
        client.steps += self._steps(client, turns)
        for turn in turns if keep else ():
            client.state["optimiser"] |= optimiser_state(turn)

    def _steps(self, client: Client, turns: Sequence[Turn]) -> int:
        """Steps of the shared entry that was updated most often; those of players do not add up."""
        taken: Counter[str] = Counter()
        for turn in turns:
            own = {k for k, p in turn.parameters if self.named.get(k) is p}
            for key in own & client.sent if client.sent else own:
                taken[key] += turn.steps
        return max(taken.values(), default=0)

    def _turn(self, client: Client, player: Player) -> Turn:
        """Bind a player to this client: its parameters, forward pass, objective and optimiser."""
        optimisation = self.scenario.optimisation(client.round)
        if player.optimisation:
            optimisation = player.optimisation(optimisation)
        objective = partial(player.objective or self._base_loss, client)
        editing = self.acting["edit_gradients"]

        def edit_gradients(step: Step) -> None:
            for part in editing:
                part.edit_gradients(client, step)

        own = self.named.items() if player.train is whole_net else player.train(client)
        return Turn(
            player.name,
            [*own, *(self._extra_parameters(client) if not player.objective else ())],
            partial(player.forward, client),
            objective,
            optimisation,
            edit_gradients if editing and player.objective is None else None,
        )

    def _extra_parameters(self, client: Client) -> Named:
        """Tensors outside the net that parts train, as ``part/key``."""
        for part in self.method.parts:
            for key, parameter in part.extra_parameters(client):
                yield f"{part.name}/{key}", parameter

    def _base_loss(self, client: Client, step: Step) -> dict[str, Tensor]:
        """The task loss and every part's loss term, each under its name."""
        terms = {"task": F.cross_entropy(step.out.logits, step.y)}
        for part in self.acting["loss"]:
            term = part.loss(client, step)
            if term is not None:
                terms[part.name] = term
        return terms

    def _batches(self, client: Client, phase: Phase) -> Iterator[Batch]:
        """Yield the phase's batches: shuffled, augmented, and changed by every part's ``batch``.

        A phase without epochs and steps of its own uses the scenario's local budget.
        """
        epochs, steps = phase.epochs, phase.steps
        if epochs is None and steps is None:
            epochs, steps = self.scenario.epochs, self.scenario.steps
        train = client.site.data.train
        augment = PRESETS[self.scenario.augment]
        change = (
            partial(apply, augment, generator=client.generator("augment")) if augment.ops else None
        )
        rows = shuffled_rows(
            len(train),
            self.scenario.batch_size,
            client.generator("batches"),
            epochs=epochs,
            steps=steps,
        )
        for positions in rows:
            x, y = train.take(positions, change)
            batch = Batch(x, y, client.batches)
            if self.hostile:
                batch = self.hostile.poison(client, batch)
            for part in self.acting["batch"]:
                batch = part.batch(client, batch)
            client.batches += 1
            yield batch

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
        if self.previous:
            own["previous"] = final
        if self.scenario.scored == "trained":
            own["trained"] = final
        own = {name: tree.clone(entries) for name, entries in own.items() if entries}
        self.store.save(client.id, client.round, self._kept(client) | own)

    @staticmethod
    def _kept(client: Client) -> dict[str, Tree]:
        """A copy of the client's state, without empty entries."""
        return {name: tree.clone(entries) for name, entries in client.state.items() if entries}

    def _statistics(self, client: Client, message: Broadcast) -> Update:
        """BatchNorm statistics of the received model on this client's training inputs."""
        estimate_statistics(self.net, client.site.data.train.chunks(self.scenario.batch_size))
        keys = batch_norm_buffers(self.net) & self.keys(Scope.SHARED)
        shared = tree.clone(tree.pick(self.net.state_dict(), keys))
        return Update(message.client, message.task, message.round, shared, examples=client.examples)

    def _score(self, client: Client, message: Broadcast) -> Update:
        """Score the client's own model on its own validation and test samples.

        With ``scored="trained"`` that is the model as it was after the client's last training, else
        the received model with the client's personal and private entries.
        """
        load(self.entries, client.state.get("trained", {}))
        return self._count(message, client, client)

    def _assess(self, client: Client, message: Broadcast) -> Update:
        """Score the received model with this client's private entries, for the protocol ``global``.

        Parts predict without the client (None), so nothing else of its state is used.
        """
        return self._count(message, client, None)

    def _count(self, message: Broadcast, client: Client, scored_as: Client | None) -> Update:
        """Correct predictions, samples and summed loss on the validation and test samples."""
        predict = partial(self.method.predict, self.net, client=scored_as)
        self.net.eval()
        metrics: dict[str, float] = {}
        for split in ("val", "test"):
            found = score(predict, getattr(client.site.data, split))
            metrics |= {f"{split}/{key}": value for key, value in found.items()}
        return Update(
            message.client, message.task, message.round, examples=client.examples, metrics=metrics
        )

    def _talk(self, client: Client, message: Broadcast) -> Update:
        """Reply to the parts that sent a payload outside training."""
        payload = self.method.reply(client)
        return Update(
            message.client, message.task, message.round, payload=payload, examples=client.examples
        )

    def _donate(self, client: Client, message: Broadcast) -> Update:
        """The client's private entries, for scenarios that give their mean to new sites."""
        own = tree.pick(client.received, self.keys(Scope.PRIVATE))
        return Update(
            message.client, message.task, message.round, personal=own, examples=client.examples
        )
