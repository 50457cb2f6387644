"""How a visit trains: the phases, players, batches and losses of one client's local training.

``engine.visit`` runs :class:`LocalTraining` once per training visit; the loop itself is
``core.loop.descend``. Parts act here through ``begin``, ``phases``, ``batch``, ``task_loss``,
``loss`` and ``edit_gradients``. It must leave nothing behind but the trained net, the client's own
fields and what parts write themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial

import torch
from torch import Tensor, nn

from fedshift.core.client import Client
from fedshift.core.loop import (
    Batch,
    Log,
    Step,
    Turn,
    descend,
    optimiser_state,
    reduced,
    restore_optimiser,
    shuffled_rows,
)
from fedshift.core.method import Method
from fedshift.core.net import Net, Output
from fedshift.core.objective import CLASSIFICATION, balanced_weights
from fedshift.core.part import Phase, Player, through_net, whole_net
from fedshift.core.scenario import Scenario
from fedshift.data.augment import PRESETS, apply
from fedshift.engine.attacks import Hostile
from fedshift.engine.inputs import InputGuard

Forward = Callable[[Client, Batch], Output]
Moved = tuple[str, nn.Parameter]  # a parameter that a player trains, by name


class LocalTraining:
    """The training half of a worker, around its resident net; ``fixed`` entries never train."""

    def __init__(
        self,
        method: Method,
        scenario: Scenario,
        net: Net,
        inputs: InputGuard,
        fixed: Set[str],
    ) -> None:
        self.method, self.scenario, self.net, self.inputs = method, scenario, net, inputs
        self.fixed = fixed
        self.hostile: Hostile | None = None  # what attackers among the sites do to batches
        self.named = dict(net.named_parameters())
        self.moving = [(k, p) for k, p in self.named.items() if k not in fixed]
        self.device = next(net.parameters()).device.type
        self.acting = {
            hook: method.overriding(hook)
            for hook in ("batch", "task_loss", "loss", "edit_gradients")
        }
        self.by_domain = any("sample_domains" in d.needs for d in method.declared)
        editing = self.acting["edit_gradients"]  # what replaces a gradient first, then additions
        self.acting["edit_gradients"] = (*sorted(editing, key=lambda p: not p.replaces_gradients),)

    def run(self, client: Client) -> Log:
        """Train the client's net, in place, phase by phase; returns the loss terms by step."""
        extra = [
            (f"{part.name}/{key}", parameter)
            for part in self.method.parts
            for key, parameter in part.begin(client) or ()
        ]
        log = Log()
        for phase in self.method.phases(client):
            self._phase(client, phase, log, extra)
        return log

    def _phase(self, client: Client, phase: Phase, log: Log, extra: Sequence[Moved]) -> None:
        """Train the net for one phase, in place, and add to ``client.steps``.

        ``extra`` are tensors outside the net that parts train, as ``part/key``.

        If no part changes batches, losses or gradients and the only player uses the plain forward
        pass, each batch sees exactly one forward pass. Then ``descend`` need not prevent BatchNorm
        statistics from being updated more than once per batch (``one_forward``).
        """
        turns = [self._turn(client, player, extra) for player in phase.players]
        turns = [turn for turn in turns if turn.moved]  # all of a player's entries may be fixed
        keep = self.scenario.optimiser_state == "keep"
        for turn in turns if keep else ():
            restore_optimiser(turn, client.state["optimiser"])
        once = not any(self.acting.values())
        first = phase.players[0]
        once &= len(turns) == 1 and first.forward is through_net and first.objective is None
        client._objective = partial(self._total_loss, client, through_net, "model")  # noqa: SLF001
        if turns:
            descend(self.net, self._batches(client, phase), turns, log, one_forward=once)
        client._objective = None  # noqa: SLF001
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

    def _turn(self, client: Client, player: Player, extra: Sequence[Moved]) -> Turn:
        """Bind a player to this client: its parameters, forward pass, objective and optimiser."""
        optimisation = self.scenario.optimisation(client.round)
        if player.optimisation:
            optimisation = player.optimisation(optimisation)
        objective = partial(player.objective or self._base_loss, client)
        editing = self.acting["edit_gradients"]

        def edit_gradients(step: Step) -> None:
            client._objective = partial(self._total_loss, client, player.forward, player.name)  # noqa: SLF001
            for part in editing:
                part.edit_gradients(client, step)

        own: Iterable[Moved] = self.moving
        if player.train is not whole_net:
            own = [(k, p) for k, p in player.train(client) if k not in self.fixed]
        return Turn(
            player.name,
            [*own, *(extra if not player.objective else ())],
            partial(player.forward, client),
            objective,
            optimisation,
            edit_gradients if editing and player.objective is None else None,
        )

    def _total_loss(self, client: Client, forward: Forward, player: str, batch: Batch) -> Tensor:
        """The whole objective of a base player on a batch, at the present weights."""
        again, client._objective = client._objective, None  # noqa: SLF001  no term may ask for it
        try:
            with reduced(self.scenario.precision, self.device):
                terms = self._base_loss(client, Step(batch, forward(client, batch), player))
                return torch.stack(list(terms.values())).sum()
        finally:
            client._objective = again  # noqa: SLF001

    def _base_loss(self, client: Client, step: Step) -> dict[str, Tensor]:
        """The task loss and every part's loss term, each under its name."""
        own = [part.task_loss(client, step) for part in self.acting["task_loss"]]
        task = own[0] if own else None
        terms = {"task": self._task_loss(client, step) if task is None else task}
        for part in self.acting["loss"]:
            term = part.loss(client, step)
            if term is not None:
                terms[part.name] = term
        return terms

    def _task_loss(self, client: Client, step: Step) -> Tensor:
        """The objective's loss, with the classes of the client weighted if the scenario says so."""
        if self.scenario.class_balance != "weights":
            return client.task.loss(step.out.logits, step.y)
        labels = client.site.data.train.labels
        weight = balanced_weights(labels, client.classes)  # a count of labels, small beside a step
        return CLASSIFICATION.loss(step.out.logits, step.y, weight=weight)

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
        changing = bool(self.method.parts) and bool(augment.ops or self.acting["batch"])
        rows = shuffled_rows(
            len(train),
            self.scenario.batch_size,
            client.generator("batches"),
            epochs=epochs,
            steps=steps,
        )
        drawn = self._balanced(client) if self.scenario.class_balance == "sampling" else None
        for positions in rows:
            chosen = positions if drawn is None else drawn(len(positions))
            x, y = train.take(chosen, change)
            batch = Batch(x, y, client.batches)
            if self.by_domain:
                batch.domains = train.domains_at(chosen)
            if self.hostile:
                batch = self.hostile.poison(client, batch)
            for part in self.acting["batch"]:
                batch = part.batch(client, batch)
            client.batches += 1
            if changing:
                self.inputs.record(batch.x)
            yield batch

    @staticmethod
    def _balanced(client: Client) -> Callable[[int], Tensor]:
        """Draws rows with replacement, each class of the client equally often on average."""
        labels = client.site.data.train.labels
        chances = balanced_weights(labels, client.classes)[labels]
        generator = client.generator("class-balance")
        return lambda n: torch.multinomial(chances, n, replacement=True, generator=generator)
