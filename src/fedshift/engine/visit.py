"""The client's half of a round: what a part sees there, and one visit from mail to reply."""

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
from fedshift.core.method import Method, Named, Phase, Player, through_net, whole_net
from fedshift.core.net import (
    Net,
    Scope,
    batch_norm_buffers,
    by_scope,
    estimate_statistics,
    load,
)
from fedshift.core.objective import score
from fedshift.core.scenario import Scenario
from fedshift.core.state import State, StateStore
from fedshift.data.augment import PRESETS, apply
from fedshift.data.federation import Site
from fedshift.data.samples import Samples


@dataclass
class Worker:
    """A resident net and everything needed to play any site's visit: one per process."""

    method: Method
    scenario: Scenario
    seed: int
    net: Net
    sites: Mapping[str, Site]
    store: StateStore
    resources: dict[str, Samples] = field(default_factory=dict)  # granted data, by resource
    label: str = "method"  # for messages

    def __post_init__(self) -> None:
        self.entries = self.net.state_dict()  # the net's own memory, whatever is loaded into it
        self.named = dict(self.net.named_parameters())
        self.device = next(iter(self.entries.values())).device
        self.initial = tree.clone(self.entries)
        self.scopes = self.method.scopes(self.net, bn_local=self.scenario.bn == "local")
        self.previous = any("previous" in d.references for d in self.method.declared)
        self._keys = by_scope(self.scopes)
        self.acting = {
            h: self.method.overriding(h) for h in ("probe", "batch", "loss", "edit_gradients")
        }

    def keys(self, scope: Scope) -> frozenset[str]:
        """Entries that live in ``scope``."""
        return self._keys[scope]

    def visit(self, message: Broadcast) -> Update:
        """Play one message at the site it is addressed to.

        The reply may lie in the net's own memory: the next visit overwrites it.
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
            "talk": self._talk,  # an exchange of one part beside training
        }
        with seeds.fork(self.seed, message.round, message.client, message.task):
            reply = tasks[message.task](client, message)
        return reply if self.device.type == "cpu" else reply.to_cpu()

    def _open(self, message: Broadcast, state: State) -> Client:
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
        """Round 0: who the client is, and what its parts tell about its data."""
        known = "domain_ids" in self.scenario.allow
        told = tree.clone(self.method.gather(lambda part: part.enrol(client)))
        if kept := self._kept(client):
            self.store.save(client.id, message.round, kept)
        return Update(
            message.client,
            message.task,
            message.round,
            payload=told,
            examples=client.examples,
            facts={"domain": client.site.domain} if known else {},
        )

    def _train(self, client: Client, message: Broadcast) -> Update:
        """Probe, train, reply; private entries go to the client's state."""
        probed = self._probe(client)
        for part in self.method.parts:
            part.begin(client)
        log = Log()
        for phase in self.method.phases(client):
            self._phase(client, phase, log)
        metrics = log.means(self._where(client))
        payload = tree.merge([probed, self.method.gather(lambda part: part.finish(client))])
        final = tree.contiguous(self.entries)
        self._require_finite(client, final)
        self._remember(client, final)
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
        return self.method.encode(client, update)

    def _uploaded(self) -> frozenset[str]:
        """Shared entries, less the statistics that are recomputed after aggregation."""
        skipped = batch_norm_buffers(self.net) if self.scenario.bn == "recompute" else set()
        return self.keys(Scope.SHARED) - skipped

    def _probe(self, client: Client) -> Tree:
        """Every part's measurement of the received model; net and generators restored after."""
        if not self.acting["probe"]:
            return {}
        with seeds.fork(self.seed, client.round, client.id, "probe"):
            found = self.method.gather(lambda part: part.probe(client))
        found = tree.clone(found)
        load(self.entries, client.received)
        client._generators.clear()  # noqa: SLF001  the visit's own object
        return found

    def _phase(self, client: Client, phase: Phase, log: Log) -> None:
        """Run one phase in place."""
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
        """Steps of the shared entry that moved most: players of other entries do not add up."""
        taken: Counter[str] = Counter()
        for turn in turns:
            own = {k for k, p in turn.parameters if self.named.get(k) is p}
            for key in own & client.sent if client.sent else own:
                taken[key] += turn.steps
        return max(taken.values(), default=0)

    def _turn(self, client: Client, player: Player) -> Turn:
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
        """What the parts train beside the net, under their names."""
        for part in self.method.parts:
            for key, parameter in part.extra_parameters(client):
                yield f"{part.name}/{key}", parameter

    def _base_loss(self, client: Client, step: Step) -> dict[str, Tensor]:
        """Task loss plus every part's term, each under its name."""
        terms = {"task": F.cross_entropy(step.out.logits, step.y)}
        for part in self.acting["loss"]:
            term = part.loss(client, step)
            if term is not None:
                terms[part.name] = term
        return terms

    def _batches(self, client: Client, phase: Phase) -> Iterator[Batch]:
        """The phase's budget of batches, through every part's ``batch`` hook."""
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
            for part in self.acting["batch"]:
                batch = part.batch(client, batch)
            client.batches += 1
            yield batch

    def _where(self, client: Client) -> str:
        return f"{self.label}, client {client.id}, round {client.round}"

    def _require_finite(self, client: Client, final: Tree) -> None:
        floats = {k: v for k, v in final.items() if v.is_floating_point()}
        found, scale = torch.zeros(1, device=self.device), torch.ones(1, device=self.device)
        torch._amp_foreach_non_finite_check_and_unscale_([*floats.values()], found, scale)
        if not found:  # one kernel for all of them, a third of the time of their sums
            return
        bad = next((k for k, v in floats.items() if not v.isfinite().all()), "the weights")
        raise DivergedError(
            f"{self._where(client)}: {bad} is not finite after training; lower lr, or set clip"
        )

    def _remember(self, client: Client, final: Tree) -> None:
        """Write the client's state, last and as one assignment."""
        own = {"net": tree.pick(final, self.keys(Scope.PRIVATE))}
        if self.previous:
            own["previous"] = final
        if self.scenario.scored == "trained":
            own["trained"] = final
        own = {name: tree.clone(entries) for name, entries in own.items() if entries}
        self.store.save(client.id, client.round, self._kept(client) | own)

    @staticmethod
    def _kept(client: Client) -> dict[str, Tree]:
        """What parts have written into the client's state."""
        return {name: tree.clone(entries) for name, entries in client.state.items() if entries}

    def _statistics(self, client: Client, message: Broadcast) -> Update:
        """BatchNorm statistics of the received model on this client's training inputs."""
        estimate_statistics(self.net, client.site.data.train.chunks(self.scenario.batch_size))
        keys = batch_norm_buffers(self.net) & self.keys(Scope.SHARED)
        shared = tree.clone(tree.pick(self.net.state_dict(), keys))
        return Update(message.client, message.task, message.round, shared, examples=client.examples)

    def _score(self, client: Client, message: Broadcast) -> Update:
        """Right answers of the client's own model on its own validation and test samples."""
        load(self.entries, client.state.get("trained", {}))
        return self._count(message, client, client)

    def _assess(self, client: Client, message: Broadcast) -> Update:
        """Right answers of the received model with this client's private entries."""
        return self._count(message, client, None)

    def _count(self, message: Broadcast, client: Client, scored_as: Client | None) -> Update:
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
        told = self.method.reply(client)
        return Update(
            message.client, message.task, message.round, payload=told, examples=client.examples
        )

    def _donate(self, client: Client, message: Broadcast) -> Update:
        """Private entries, for scenarios that give their mean to new sites."""
        own = tree.pick(client.received, self.keys(Scope.PRIVATE))
        return Update(
            message.client, message.task, message.round, personal=own, examples=client.examples
        )
