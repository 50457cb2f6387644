"""Methods and their parts: the page to read before writing a method of your own.

A method is a tuple of parts plus one aggregator. Authors subclass :class:`Part` and override the
hooks they need; ``engine.visit`` calls the client-side hooks, ``engine.round`` the server-side
ones. Parts and methods hold hyper-parameters only, never tensors, state or data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedshift.base import tree
from fedshift.base.errors import ClashError, ConfigError, UnknownNameError
from fedshift.base.tree import Tree
from fedshift.core.aggregate import Aggregator, Mean
from fedshift.core.component import Declares, described, settings_of, with_setting
from fedshift.core.loop import Batch, Step
from fedshift.core.net import Net, Output, Scope, batch_norm_buffers
from fedshift.core.optimiser import Optimisation

if TYPE_CHECKING:
    from fedshift.core.client import Client
    from fedshift.core.message import Update
    from fedshift.core.server import Server
    from fedshift.data.samples import Samples


Named = Iterable[tuple[str, nn.Parameter]]
# Send one payload per client; returns the replies by client. An exchange beside training: each
# client's ``reply`` hook makes its reply, and a client that does not answer is not in the result.
Ask = Callable[[Mapping[str, Tree]], Mapping[str, Tree]]
RESERVED = {"net", "previous", "trained", "optimiser"}  # keys of client state that the core uses


def whole_net(client: Client) -> Named:
    """Every parameter of the client's net: what a player trains by default."""
    return client.net.named_parameters()


def through_net(client: Client, batch: Batch) -> Output:
    """The client's net on the batch: a player's default forward pass."""
    out: Output = client.net(batch.x)
    return out


@dataclass(frozen=True)
class Player:
    """One optimiser step per batch: its forward pass, objective, parameters and optimiser.

    A player without an objective is a base player: it minimises the task loss plus every part's
    ``loss``, and its gradients pass through every part's ``edit_gradients``. A player that
    maximises returns the negative of its objective. Ditto has two players, the shared and the
    personal model.
    """

    name: str = "model"
    train: Callable[[Client], Named] = whole_net
    forward: Callable[[Client, Batch], Output] = through_net
    objective: Callable[[Client, Step], Mapping[str, Tensor]] | None = None
    optimisation: Callable[[Optimisation], Optimisation] | None = None  # None: the scenario's


@dataclass(frozen=True)
class Phase:
    """A stage of local training; on each batch the players take one step each, in order."""

    players: tuple[Player, ...] = (Player(),)
    epochs: int | None = None  # None, and no steps: the scenario's budget
    steps: int | None = None


class Part(Declares):
    """One idea of one paper, its client side and its server side in one class.

    Subclasses are frozen dataclasses of hyper-parameters. State lives in ``client.state[name]`` and
    ``server.state[name]``, payload travels as ``name/key``, so parts never collide. Every hook is
    optional. One round calls, at the server, ``negotiate`` and ``send``; at each client ``probe``,
    ``begin`` and ``phases``, per batch ``batch``, ``loss`` and ``edit_gradients``, then ``finish``
    and ``encode``; at the server ``reject_reason``, ``decode``, ``merge``, the aggregator,
    ``personal`` and ``refine``. Unless noted otherwise the parts are called in their order.
    """

    # both sides, once
    def build(self, net: Net) -> None:
        """Both sides, once, when the net is made: add modules in place (MOON's projector)."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Both sides, once: the entries that are not shared, as FedBN's BatchNorm is private.

        If two parts disagree about an entry, the most private scope wins.
        """
        return {}

    # client
    def enrol(self, client: Client) -> Tree:
        """Client, round 0: summaries of its data, sent once (FedDebias: means of inputs)."""
        return {}

    def probe(self, client: Client) -> Tree:
        """Client, each training visit, before ``begin``: measure the received model.

        Returns payload. The net and the generators are restored afterwards, so measuring changes
        nothing. GroupDRO reports the training loss of the received model.
        """
        return {}

    def begin(self, client: Client) -> None:
        """Client, before the first batch of training: prepare state (SCAFFOLD: c_i starts at 0)."""

    def phases(self, client: Client) -> Sequence[Phase]:
        """Client, once per training visit: replace the default single phase of a single player.

        FedRep trains the head, then the body. Empty keeps the default; at most one part of a method
        may override it.
        """
        return ()

    def extra_parameters(self, client: Client) -> Named:
        """Client, once per phase and base player: tensors outside the net that it trains as well.

        CSAC returns its projections, which live in the client's state.
        """
        return ()

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Client, each batch, before any forward pass: augment or mix it (Mixup).

        Each part gets the batch that the one before it returned. Use ``batch.replace``.
        """
        return batch

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Client, each step of a base player, after its forward pass: a term to add to the loss.

        FedProx returns its proximal term. None adds nothing; each term is logged by part.
        """
        return None

    def edit_gradients(self, client: Client, step: Step) -> None:
        """Client, each step of a base player, between backward pass and optimiser step.

        Change ``parameter.grad`` in place: SCAFFOLD adds c - c_i. Clipping comes after it.
        """

    def finish(self, client: Client) -> Tree:
        """Client, after the last batch: write state, return payload (SCAFFOLD: change of c_i)."""
        return {}

    def encode(self, client: Client, update: Update) -> Update:
        """Client, last: what leaves the site in place of the update.

        Local differential privacy clips and adds noise here. Each part gets what the one before it
        returned.
        """
        return update

    def reply(self, client: Client) -> Tree:
        """Client, when this part calls ``ask`` at the server: payload that answers it.

        ``client.payload(self)`` is the question. State written here is not saved. Secure
        aggregation replies with its public keys.
        """
        return {}

    # server
    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Server, round 0: read what every client's ``enrol`` returned.

        FedDebias makes its first pseudo-data of them. ``server.roster`` is filled only afterwards.
        """

    def send(self, server: Server, client: str) -> Tree:
        """Server, each round, once per participant: payload for that client (SCAFFOLD: c)."""
        return {}

    def negotiate(self, server: Server, cohort: Sequence[str], ask: Ask) -> Sequence[str]:
        """Server, each round, before any training message: agree on something with the cohort.

        Returns the clients that go on. Secure aggregation exchanges keys here, by ``ask``.
        """
        return cohort

    def reject_reason(self, server: Server, update: Update) -> str:
        """Server, on each reply to any task: why to reject it, as text; empty accepts it.

        A rejected reply counts as lost. Central differential privacy rejects any payload.
        """
        return ""

    def decode(self, server: Server, updates: Sequence[Update], ask: Ask) -> Sequence[Update]:
        """Server, before anything reads the updates: what the method sees in their place.

        The inverse of ``encode``, so parts are called in reverse order. Secure aggregation returns
        one update, the mean.
        """
        return updates

    def require(self, server: Server) -> None:
        """Server, before round 0, privacy parts only: raise if the guarantee cannot be given."""

    def privacy_spent(self, server: Server, visits: Mapping[str, int]) -> Mapping[str, Any]:
        """Server, after each round, privacy parts only: the guarantee so far, as JSON.

        ``visits`` counts training messages by client; local differential privacy computes epsilon
        from the largest count.
        """
        return {}

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Server, each round, before aggregation: read all updates (SCAFFOLD: updates c).

        Overriding it keeps every update in memory; otherwise they may be summed on arrival.
        """

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Server, after aggregation: next personal entries by participant.

        FDSE mixes those of similar clients. At most one part of a method may override it; by
        default each client keeps its own.
        """
        return {}

    def refine(self, server: Server) -> None:
        """Server, last in a round: change the aggregated model, by replacing ``server.shared``.

        FedKA fine-tunes it on unlabelled target inputs.
        """

    # scoring
    def predict(self, net: Net, x: Tensor, client: Client | None) -> Tensor | None:
        """When a model is scored: logits (B, K), or None for the net's own.

        ``client`` is None if the scored model belongs to no client. Ditto predicts with the
        personal model. At most one part of a method may override it.
        """
        return None

    def adapt(self, net: Net, unlabelled: Samples) -> None:
        """Before scoring at a new site: fit ``net`` in place to its inputs, without labels.

        FedBN re-estimates BatchNorm statistics. Used by the protocol ``unseen-adapted``.
        """


@dataclass(frozen=True)
class Method:
    """Parts in order, and the one aggregator that merges the shared entries."""

    parts: tuple[Part, ...] = ()
    aggregate: Aggregator = dataclasses.field(default_factory=Mean)

    def __post_init__(self) -> None:
        names = [p.name for p in self.parts]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ClashError(f"part {twice[0]!r} is used twice; drop one of them")
        if taken := sorted(set(names) & RESERVED):
            raise ClashError(f"a part cannot be called {taken[0]!r}; the core keeps state under it")
        for hook in ("phases", "personal", "predict"):
            self._provider(hook)

    def _provider(self, hook: str) -> Part | None:
        """The one part that overrides ``hook``; an error that names both if there are two."""
        own = self.overriding(hook)
        if len(own) > 1:
            names = " and ".join(p.name for p in own)
            raise ClashError(f"{names} both provide {hook!r}; a method takes one, drop the other")
        return own[0] if own else None

    def overriding(self, hook: str) -> tuple[Part, ...]:
        """The parts that override ``hook``, in order."""
        return tuple(p for p in self.parts if getattr(type(p), hook) is not getattr(Part, hook))

    # composition
    def plus(self, *parts: Part) -> Method:
        """This method with further parts, called after its own."""
        return replace(self, parts=self.parts + parts)

    def without(self, *names: str) -> Method:
        """This method without some parts; naming the aggregator restores the plain mean."""
        known = {p.name for p in self.parts} | {self.aggregate.name}
        for name in names:
            if name not in known:
                raise UnknownNameError.of("part of this method", name, known)
        parts = tuple(p for p in self.parts if p.name not in names)
        return Method(parts, Mean() if self.aggregate.name in names else self.aggregate)

    def with_(self, aggregate: Aggregator | None = None, **values: Any) -> Method:
        """This method with another aggregator or settings (``part__key`` where ambiguous)."""
        out = replace(self, aggregate=aggregate or self.aggregate)
        for key, value in values.items():
            owner, _, name = key.rpartition("__")
            out = out.set(f"{owner.replace('_', '-')}.{name}" if owner else name, value)
        return out

    def set(self, key: str, value: Any) -> Method:
        """This method with one hyper-parameter changed: ``key``, or ``part.key`` if ambiguous."""
        owner, _, name = key.rpartition(".")
        holders = [h for h in self.settings() if h[1] == name and owner in ("", h[0])]
        if not holders:
            known = [f"{h[0]}.{h[1]}" for h in self.settings()] + [h[1] for h in self.settings()]
            raise UnknownNameError.of("parameter of this method", key, known or ["(it has none)"])
        if len(holders) > 1:
            options = " or ".join(f"{h[0]}.{h[1]}" for h in holders)
            raise ConfigError(f"{key!r} is ambiguous; say {options}")
        part = holders[0][0]
        parts = tuple(with_setting(p, name, value) if p.name == part else p for p in self.parts)
        return Method(parts, self.aggregate.set(part, name, value))

    def settings(self) -> list[tuple[str, str, Any]]:
        """Every hyper-parameter as (owner's name, key, value)."""
        own = [(p.name, f.name, getattr(p, f.name)) for p in self.parts for f in settings_of(p)]
        return own + self.aggregate.settings()

    def describe(self) -> dict[str, Any]:
        """Parts, aggregator and all settings, as JSON; the hash in a run's name covers it."""
        return {
            "parts": [described(p) for p in self.parts],
            "aggregate": self.aggregate.describe(),
        }

    # what the engine calls
    @property
    def streams(self) -> bool:
        """Whether updates may be summed as they arrive: no part reads all of them at once."""
        hooks = ("merge", "personal", "decode")
        return all(getattr(type(p), h) is getattr(Part, h) for p in self.parts for h in hooks)

    @property
    def declared(self) -> tuple[Declares, ...]:
        """All components: the parts, the rule, its server optimiser and its weighting."""
        return (*self.parts, *self.aggregate.declared)

    def scopes(self, net: Net, *, bn_local: bool = False) -> dict[str, Scope]:
        """Scope of every entry; ``bn_local`` keeps BatchNorm statistics at the clients."""
        out = dict.fromkeys(net.state_dict(), Scope.SHARED)
        answers = [part.scope(net) for part in self.parts]
        if bn_local:
            answers.append(dict.fromkeys(batch_norm_buffers(net), Scope.PRIVATE))
        for answer in answers:
            for key, scope in answer.items():
                out[key] = max(out[key], scope)
        return out

    def gather(self, pick: Callable[[Part], Tree]) -> Tree:
        """The payloads that ``pick`` returns for each part, keys prefixed by the part's name."""
        return tree.merge(tree.prefixed(p.name, pick(p)) for p in self.parts)

    def encode(self, client: Client, update: Update) -> Update:
        """The update as it leaves the site, after every part's ``encode``."""
        for part in self.parts:
            update = part.encode(client, update)
        return update

    def reply(self, client: Client) -> Tree:
        """Replies of those parts whose payload is in the client's inbox."""
        asked = {key.partition("/")[0] for key in client.inbox}
        return self.gather(lambda part: part.reply(client) if part.name in asked else {})

    def phases(self, client: Client) -> Sequence[Phase]:
        """Phases of this visit: the providing part's, or the default one."""
        provider = self._provider("phases")
        return (provider.phases(client) if provider else ()) or (Phase(),)

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Next personal entries by participant: as uploaded, unless a part mixes them."""
        provider = self._provider("personal")
        own = {u.client: u.personal for u in updates if u.personal}
        return own | dict(provider.personal(server, updates)) if provider else own

    def predict(self, net: Net, x: Tensor, client: Client | None) -> Tensor:
        """Logits (B, K) of the scored model: the providing part's, or the net's."""
        provider = self._provider("predict")
        logits = provider.predict(net, x, client) if provider else None
        if logits is None:
            out: Output = net(x)
            return out.logits
        return logits
