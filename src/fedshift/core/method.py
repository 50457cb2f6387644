"""A method: a tuple of parts plus one aggregator, and how several are composed.

Authors and expressions (``core.registry``) make methods, ``engine`` asks them which parts act in a
hook. A method holds hyper-parameters only, never tensors, state or data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedshift.base import tree
from fedshift.base.errors import ClashError, ConfigError, UnknownNameError
from fedshift.base.tree import Tree
from fedshift.core.aggregate import Aggregator, Mean
from fedshift.core.channel import Channel
from fedshift.core.component import Declares, described, settings_of, with_setting
from fedshift.core.net import Net, Output, Scope, batch_norm_buffers
from fedshift.core.part import Part, Phase, Scoring
from fedshift.core.payload import Declared, ModelSpec, declared

if TYPE_CHECKING:
    from fedshift.core.client import Client
    from fedshift.core.message import Task, Update
    from fedshift.core.server import Server

RESERVED = {"net", "previous", "trained", "optimiser"}  # keys of client state that the core uses


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
        for hook in ("phases", "task_loss", "personal", "predict"):
            self._provider(hook)
        if len(anew := [p.name for p in self.parts if p.replaces_gradients]) > 1:
            raise ClashError(
                f"{' and '.join(anew)} both take the gradient anew; "
                "a method takes one, drop the other"
            )

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

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The parts that change what travels, in the order in which updates pass them."""
        return tuple(p for p in self.parts if isinstance(p, Channel))

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
        reading = self.overriding("merge") or self.overriding("personal")
        return not reading and not any(channel.decodes_together for channel in self.channels)

    @property
    def declared(self) -> tuple[Declares, ...]:
        """All components: the parts, the rule, its server optimiser and its weighting."""
        return (*self.parts, *self.aggregate.declared)

    @property
    def pools_sites(self) -> bool:
        """Whether the data of all sites are put into one place."""
        return any(d.pools_sites for d in self.declared)

    def scopes(self, net: Net, *, bn_local: bool = False) -> dict[str, Scope]:
        """Scope of every entry; ``bn_local`` keeps BatchNorm statistics at the clients.

        What the backbone has frozen is fixed, whatever the parts say.
        """
        out = dict.fromkeys(net.state_dict(), Scope.SHARED)
        if gone := sorted(net.frozen - out.keys()):
            raise ClashError(
                f"the backbone freezes {gone[0]}, which a part of this method replaces; "
                "let the whole backbone train (train=all), or use another method"
            )
        answers: list[Mapping[str, Scope]] = [dict.fromkeys(net.frozen, Scope.FIXED)]
        answers += [part.scope(net) for part in self.parts]
        if bn_local:
            answers.append(dict.fromkeys(batch_norm_buffers(net), Scope.PRIVATE))
        for answer in answers:
            for key, scope in answer.items():
                out[key] = max(out[key], scope)
        return out

    def uploads(self, model: ModelSpec) -> dict[Task, Declared]:
        """What the parts declare to send up, by task; after every part's ``check``."""
        for part in self.parts:
            part.check(model)
        return declared(self.parts, model)

    def gather(self, pick: Callable[[Part], Tree]) -> Tree:
        """The payloads that ``pick`` returns for each part, keys prefixed by the part's name."""
        return tree.merge(tree.prefixed(p.name, pick(p)) for p in self.parts)

    def encode(self, client: Client, update: Update) -> Update:
        """The update as it leaves the site, after every channel's ``encode``."""
        for channel in self.channels:
            update = channel.encode(client, update)
        return update

    def reply(self, client: Client) -> Tree:
        """Replies of those channels whose payload is in the client's inbox."""
        asked = {key.partition("/")[0] for key in client.inbox}
        own = (c for c in self.channels if c.name in asked)
        return tree.merge(tree.prefixed(c.name, c.reply(client)) for c in own)

    def send_scoring(self, server: Server, client: str | None) -> Tree:
        """Payload of every part for scoring at a client, or at the server (None)."""
        return self.gather(lambda part: part.send_scoring(server, client))

    def phases(self, client: Client) -> Sequence[Phase]:
        """Phases of this visit: the providing part's, or the default one."""
        provider = self._provider("phases")
        return (provider.phases(client) if provider else ()) or (Phase(),)

    def personal(self, server: Server, updates: Sequence[Update]) -> Mapping[str, Tree]:
        """Next personal entries by participant: as uploaded, unless a part mixes them."""
        provider = self._provider("personal")
        own = {u.client: u.personal for u in updates if u.personal}
        return own | dict(provider.personal(server, updates)) if provider else own

    def predict(self, net: Net, scoring: Scoring, x: Tensor) -> Tensor:
        """Outputs (B, K) of the scored model: the providing part's, or the net's."""
        provider = self._provider("predict")
        logits = provider.predict(net, x, scoring) if provider else None
        if logits is None:
            out: Output = net(x)
            return out.logits
        return logits
