"""Parts: the page to read before writing a method of your own.

A method is a tuple of parts plus one aggregator (``core.method``). Authors subclass :class:`Part`
and override the hooks they need; ``engine.visit`` calls the client-side hooks, ``engine.round`` the
server-side ones. What happens to an update on its way to the server is a part of another kind,
``core.channel.Channel``. Parts hold hyper-parameters only, never tensors, state or data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedshift.base import tree
from fedshift.base.tree import Tree
from fedshift.core.component import Declares
from fedshift.core.loop import Batch, Step
from fedshift.core.net import Net, Output, Scope
from fedshift.core.optimiser import Optimisation
from fedshift.core.payload import ModelSpec, Uploads

if TYPE_CHECKING:
    from fedshift.core.client import Client
    from fedshift.core.message import Update
    from fedshift.core.server import Server
    from fedshift.data.samples import Samples


Named = Iterable[tuple[str, nn.Parameter]]


def whole_net(client: Client) -> Named:
    """Every parameter of the client's net: what a player trains by default.

    Entries whose scope is fixed are left out of every player's parameters.
    """
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


@dataclass(frozen=True)
class Scoring:
    """What ``predict`` and ``adapt`` may see besides the net.

    ``client`` is None if the scored model belongs to no client: the one model of the server, on a
    training domain or at a new site.
    """

    client: Client | None
    inbox: Tree  # what every part's ``send_scoring`` returned, "part/key"; see payload()
    draw: Callable[[str], torch.Generator]

    def payload(self, part: Part) -> Tree:
        """What ``part.send_scoring`` returned at the server, keys without the prefix."""
        return tree.under(part.name, self.inbox)

    def generator(self, part: str) -> torch.Generator:
        """A torch generator of (seed, round, site, part), from its start at every call."""
        return self.draw(part)


class Part(Declares):
    """One idea of one paper, its client side and its server side in one class.

    Subclasses are frozen dataclasses of hyper-parameters. State lives in ``client.state[name]`` and
    ``server.state[name]``, payload travels as ``name/key``, so parts never collide; what is needed
    during one visit only belongs into ``client.scratch[name]``. Every hook is optional. One round
    calls, at the server, ``send``; at each client ``probe``, ``begin`` and ``phases``, per batch
    ``batch``, ``task_loss``, ``loss`` and ``edit_gradients``, then ``finish``; at the server
    ``merge``, the aggregator, ``personal`` and ``refine``. Scoring calls ``send_scoring``, then
    ``adapt`` and ``predict``. Unless noted otherwise the parts are called in their order.
    """

    # both sides, once
    def build(self, net: Net) -> None:
        """Both sides, once, when the net is made: add modules in place (MOON's projector)."""

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Both sides, once: the entries that are not shared, as FedBN's BatchNorm is private.

        If two parts disagree about an entry, the most private scope wins.
        """
        return {}

    def check(self, model: ModelSpec) -> None:
        """Both sides, once: raise a ConfigError if it cannot work with this net and scenario.

        Here all scopes are known: FDSE's consistency needs statistics that are shared.
        """

    def uploads(self, model: ModelSpec) -> Uploads:
        """Both sides, once: every entry of payload that leaves a client, by task and key.

        ``enrol`` is what that hook returns; ``train`` what ``probe`` and ``finish`` return, and
        what a channel's ``encode`` adds; ``talk`` what a channel's ``reply`` returns. Anything else
        is an error at the client and refused at the server. SCAFFOLD sends one entry per shared
        parameter: ``{"train": model.per_parameter()}``.
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

    def begin(self, client: Client) -> Named | None:
        """Client, before the first batch of training: prepare state (SCAFFOLD: c_i starts at 0).

        May return trainable tensors outside the net, as (name, parameter): every base player trains
        them as well. CSAC returns its projections.
        """
        return None

    def phases(self, client: Client) -> Sequence[Phase]:
        """Client, once per training visit: replace the default single phase of a single player.

        FedRep trains the head, then the body. Empty keeps the default; at most one part of a method
        may override it.
        """
        return ()

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Client, each batch, before any forward pass: augment or mix it (Mixup).

        Each part gets the batch that the one before it returned. Use ``batch.replace``.
        """
        return batch

    def task_loss(self, client: Client, step: Step) -> Tensor | None:
        """Client, each step of a base player: a loss in place of the objective's own.

        For methods that change the task's loss and do not add to it: balanced softmax, logit
        adjustment. None keeps the objective's; at most one part of a method may override it.
        """
        return None

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Client, each step of a base player, after its forward pass: a term to add to the loss.

        FedProx returns its proximal term. None adds nothing; each term is logged by part.
        """
        return None

    def edit_gradients(self, client: Client, step: Step) -> None:
        """Client, each step of a base player, between backward pass and optimiser step.

        Change ``parameter.grad`` in place: SCAFFOLD adds c - c_i. Clipping comes after it. Methods
        that take a gradient elsewhere (sharpness-aware, meta steps) move the weights, ask
        ``client.objective(step.batch)`` for the whole objective there, and move them back.
        """

    def finish(self, client: Client) -> Tree:
        """Client, after the last batch: write state, return payload (SCAFFOLD: change of c_i)."""
        return {}

    # server
    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Server, round 0: read what every client's ``enrol`` returned.

        FedDebias makes its first pseudo-data of them. ``server.roster`` is filled only afterwards.
        """

    def send(self, server: Server, client: str) -> Tree:
        """Server, each round, once per participant: payload for that client (SCAFFOLD: c)."""
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
    def send_scoring(self, server: Server, client: str | None) -> Tree:
        """Server, whenever a model is scored or adapted: payload for ``predict`` and ``adapt``.

        For what a model needs besides its entries: prototypes, say. ``client`` is None for the one
        model that the server scores; it must be the same tree at every call of a round.
        """
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """When a model is scored: outputs (B, K), or None for the net's own.

        Ditto predicts with the personal model. At most one part of a method may override it.
        """
        return None

    def adapt(self, net: Net, unlabelled: Samples, scoring: Scoring) -> None:
        """Before scoring at a new site: fit ``net`` in place to its inputs, without labels.

        FedBN re-estimates BatchNorm statistics. Used by the protocol ``unseen-adapted``.
        """
