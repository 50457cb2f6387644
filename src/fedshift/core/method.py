"""A method is a tuple of two-sided parts plus one aggregator; hyper-parameters only, no tensors."""

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
Ask = Callable[[Mapping[str, Tree]], Mapping[str, Tree]]  # letters by client to who answered what
RESERVED = {"net", "previous", "trained", "optimiser"}  # the core's own entries of client state


def whole_net(client: Client) -> Named:
    """Every parameter of the client's net."""
    return client.net.named_parameters()


def through_net(client: Client, batch: Batch) -> Output:
    """The client's net on the batch."""
    out: Output = client.net(batch.x)
    return out


@dataclass(frozen=True)
class Player:
    """Who moves on a batch: its forward pass, its objective, its parameters, its optimiser.

    A player without an objective is a base player: it minimises the task loss plus every part's
    ``loss`` and its gradients pass through every part's ``edit_gradients``. A player that maximises
    returns a negative term.
    """

    name: str = "model"
    train: Callable[[Client], Named] = whole_net
    forward: Callable[[Client, Batch], Output] = through_net
    objective: Callable[[Client, Step], Mapping[str, Tensor]] | None = None
    optimisation: Callable[[Optimisation], Optimisation] | None = None  # None: the scenario's


@dataclass(frozen=True)
class Phase:
    """A stretch of local training; on each batch the players move one after another."""

    players: tuple[Player, ...] = (Player(),)
    epochs: int | None = None  # None, and no steps: the scenario's budget
    steps: int | None = None


class Part(Declares):
    """One idea of one paper, client half and server half side by side.

    Subclasses are frozen dataclasses of hyper-parameters; state lives in ``client.state[name]``
    and ``server.state[name]``, payload travels as ``name/key``, so parts never collide. Every hook
    is optional; docs/extending.md shows them in the order of a round.
    """

    # both sides, once
    def build(self, net: Net) -> None:
        """Extend the net in place, on the server and on every client."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Where entries live that are not shared; the most private answer wins."""
        return {}

    # client
    def enrol(self, client: Client) -> Tree:
        """Round 0: summaries of the client's data, sent once."""
        return {}

    def probe(self, client: Client) -> Tree:
        """Measure the received model; net and generators are restored afterwards."""
        return {}

    def begin(self, client: Client) -> None:
        """Before the first batch of a visit."""

    def phases(self, client: Client) -> Sequence[Phase]:
        """Replace the default single phase; at most one part of a method may answer."""
        return ()

    def extra_parameters(self, client: Client) -> Named:
        """Trainable tensors outside the net that every base player moves along with its own."""
        return ()

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Augment, mix or extend a batch; chains in the order of the parts."""
        return batch

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """A term to add to the task loss of the base player."""
        return None

    def edit_gradients(self, client: Client, step: Step) -> None:
        """Edit the base player's gradients between backward and optimiser step."""

    def finish(self, client: Client) -> Tree:
        """After the last batch: write state, return payload."""
        return {}

    def encode(self, client: Client, update: Update) -> Update:
        """What leaves the site in place of its reply to training; chains in the order of parts."""
        return update

    def reply(self, client: Client) -> Tree:
        """Reply to what the server half asked in an exchange beside training, see ``negotiate``."""
        return {}

    # server
    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Round 0: what the server makes of the summaries."""

    def send(self, server: Server, client: str) -> Tree:
        """Payload for one client."""
        return {}

    def negotiate(self, server: Server, cohort: Sequence[str], ask: Ask) -> Sequence[str]:
        """Before the mail of a round: exchanges of this part; returns who goes on."""
        return cohort

    def reject_reason(self, server: Server, update: Update) -> str:
        """Why an update is to be refused, in words; empty: it is not."""
        return ""

    def decode(self, server: Server, updates: Sequence[Update], ask: Ask) -> Sequence[Update]:
        """What the method sees in place of the updates; chains against the order of the parts."""
        return updates

    def require(self, server: Server) -> None:
        """Before round 0, of parts that protect: raise if the promise cannot be kept here."""

    def privacy_spent(self, server: Server, visits: Mapping[str, int]) -> Mapping[str, Any]:
        """Which privacy the run has given so far, as JSON; ``visits`` counts mail by client."""
        return {}

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Read the updates before they are aggregated."""

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Next personal entries of each participant; at most one part may answer."""
        return {}

    def refine(self, server: Server) -> None:
        """Server phase after aggregation; chains in the order of the parts."""

    # scoring
    def predict(self, net: Net, x: Tensor, client: Client | None) -> Tensor | None:
        """Logits (B, K), if not simply the net's; ``client`` is None for a model without a site."""
        return None

    def adapt(self, net: Net, unlabelled: Samples) -> None:
        """Fit ``net`` in place to a new site's inputs; chains in the order of the parts."""


@dataclass(frozen=True)
class Method:
    """Parts in order, and the one aggregator by which shared entries are merged."""

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
        """The one part that overrides ``hook``; two are a clash that names both."""
        own = self.overriding(hook)
        if len(own) > 1:
            names = " and ".join(p.name for p in own)
            raise ClashError(f"{names} both provide {hook!r}; a method takes one, drop the other")
        return own[0] if own else None

    def overriding(self, hook: str) -> tuple[Part, ...]:
        """The parts that do something in ``hook``, in order."""
        return tuple(p for p in self.parts if getattr(type(p), hook) is not getattr(Part, hook))

    # composition
    def plus(self, *parts: Part) -> Method:
        """This method with further parts."""
        return replace(self, parts=self.parts + parts)

    def without(self, *names: str) -> Method:
        """This method without some parts; naming the aggregator's rule puts the plain mean back."""
        known = {p.name for p in self.parts} | {self.aggregate.name}
        for name in names:
            if name not in known:
                raise UnknownNameError.of("part of this method", name, known)
        parts = tuple(p for p in self.parts if p.name not in names)
        return Method(parts, Mean() if self.aggregate.name in names else self.aggregate)

    def with_(self, aggregate: Aggregator | None = None, **values: Any) -> Method:
        """This method with another aggregator or other settings (``part__key`` where two share)."""
        out = replace(self, aggregate=aggregate or self.aggregate)
        for key, value in values.items():
            owner, _, name = key.rpartition("__")
            out = out.set(f"{owner.replace('_', '-')}.{name}" if owner else name, value)
        return out

    def set(self, key: str, value: Any) -> Method:
        """One hyper-parameter, ``key`` or ``part.key``, of a part or of the aggregator."""
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
        """Every hyper-parameter as (owner, key, value)."""
        own = [(p.name, f.name, getattr(p, f.name)) for p in self.parts for f in settings_of(p)]
        return own + self.aggregate.settings()

    def describe(self) -> dict[str, Any]:
        """Parts, aggregator and every value, as JSON: what a run's name is the hash of."""
        return {
            "parts": [described(p) for p in self.parts],
            "aggregate": self.aggregate.describe(),
        }

    # what the runner asks
    @property
    def streams(self) -> bool:
        """Whether no part wants to see all updates of a round at once."""
        hooks = ("merge", "personal", "decode")
        return all(getattr(type(p), h) is getattr(Part, h) for p in self.parts for h in hooks)

    @property
    def declared(self) -> tuple[Declares, ...]:
        """Everything that declares needs."""
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
        """Each part's payload under its own name."""
        return tree.merge(tree.prefixed(p.name, pick(p)) for p in self.parts)

    def encode(self, client: Client, update: Update) -> Update:
        """What leaves a site after training, through every part."""
        for part in self.parts:
            update = part.encode(client, update)
        return update

    def reply(self, client: Client) -> Tree:
        """Replies of the parts that the server has written to."""
        asked = {key.partition("/")[0] for key in client.inbox}
        return self.gather(lambda part: part.reply(client) if part.name in asked else {})

    def phases(self, client: Client) -> Sequence[Phase]:
        """What the client does in this visit."""
        provider = self._provider("phases")
        return (provider.phases(client) if provider else ()) or (Phase(),)

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Next personal entries of the participants: their own, unless a part mixes them."""
        provider = self._provider("personal")
        own = {u.client: u.personal for u in updates if u.personal}
        return own | dict(provider.personal(server, updates)) if provider else own

    def predict(self, net: Net, x: Tensor, client: Client | None) -> Tensor:
        """Logits (B, K) of the model that is scored."""
        provider = self._provider("predict")
        logits = provider.predict(net, x, client) if provider else None
        if logits is None:
            out: Output = net(x)
            return out.logits
        return logits
