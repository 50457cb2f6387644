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

from torch import Tensor, nn

from fedshift.base.tree import Tree
from fedshift.core.component import Declares
from fedshift.core.loop import Batch, Step
from fedshift.core.net import Net, Output, Scope
from fedshift.core.optimiser import Optimisation

if TYPE_CHECKING:
    from fedshift.core.client import Client
    from fedshift.core.message import Update
    from fedshift.core.server import Server
    from fedshift.data.samples import Samples


Named = Iterable[tuple[str, nn.Parameter]]


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
    optional. One round calls, at the server, ``send``; at each client ``probe``, ``begin`` and
    ``phases``, per batch ``batch``, ``loss`` and ``edit_gradients``, then ``finish``; at the server
    ``merge``, the aggregator, ``personal`` and ``refine``. Unless noted otherwise the parts are
    called in their order.
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
