"""Channels: parts that change what an update looks like between a client and the server.

Privacy (noise, masks) and codecs (fewer bits) are channels. ``engine.visit`` passes a trained
update through every channel's ``encode``, in the order of the parts; ``engine.replies`` checks what
arrives against what the channels say they send; ``engine.round`` undoes them, last one first,
before any other part or the aggregator looks. A channel changes shared entries and its own payload,
never what another part sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedshift.base.tree import Tree
from fedshift.core.part import Part
from fedshift.core.payload import EntrySpec

if TYPE_CHECKING:
    from fedshift.core.client import Client
    from fedshift.core.message import Update
    from fedshift.core.server import Server

# Send one payload per client; returns the replies by client. An exchange beside training: each
# client's ``reply`` hook makes its reply, and a client that does not answer is not in the result.
Ask = Callable[[Mapping[str, Tree]], Mapping[str, Tree]]


class Channel(Part):
    """A part that changes what travels; its hooks in the order of a round.

    ``negotiate`` and ``reply`` exchange messages before training, ``encode`` is the last thing that
    happens at a client, ``wire`` and ``reject_reason`` say what may arrive, ``decode`` or
    ``decode_all`` restore what the method sees. The other hooks of :class:`Part` are there, too.
    """

    def negotiate(self, server: Server, cohort: Sequence[str], ask: Ask) -> Sequence[str]:
        """Server, each round, before any training message: agree on something with the cohort.

        Returns the clients that go on. Secure aggregation exchanges keys here, by ``ask``.
        """
        return cohort

    def reply(self, client: Client) -> Tree:
        """Client, when this channel calls ``ask`` at the server: payload that answers it.

        ``client.payload(self)`` is the question. State written here is not saved. Secure
        aggregation replies with its public keys.
        """
        return {}

    def encode(self, client: Client, update: Update) -> Update:
        """Client, last: what leaves the site in place of the update.

        Local differential privacy clips and adds noise here. Each channel gets what the one before
        it returned; state that it writes is saved (the residual of ``top-k``).
        """
        return update

    def wire(self, server: Server, entries: Mapping[str, EntrySpec]) -> Mapping[str, EntrySpec]:
        """Server: shapes and dtypes of the shared entries after ``encode``, from those before it.

        A reply to training with other ones is rejected. By default they are unchanged, or none if
        weights travel in this channel's payload.
        """
        return {} if self.weights_in_payload else entries

    def reject_reason(self, server: Server, update: Update) -> str:
        """Server, on each reply to any task: why to reject it, as text; empty accepts it.

        A rejected reply counts as lost. Check the channel's own payload: names, shapes, ranges.
        """
        return ""

    def decode(self, server: Server, update: Update) -> Update:
        """Server, on each update by itself, as it arrives: the inverse of ``encode``.

        ``server.shared`` is still the model that was sent. Updates that are decoded one by one can
        be summed as they arrive.
        """
        return update

    def decode_all(self, server: Server, updates: Sequence[Update], ask: Ask) -> Sequence[Update]:
        """Server, in place of ``decode`` where updates can only be decoded together.

        Secure aggregation returns one update, the mean. All updates of a round are then kept.
        """
        return [self.decode(server, update) for update in updates]

    @property
    def decodes_together(self) -> bool:
        """Whether updates cannot be decoded one by one."""
        return type(self).decode_all is not Channel.decode_all

    def require(self, server: Server) -> None:
        """Server, before round 0: raise if the channel cannot do its work here."""

    def privacy_spent(self, server: Server, visits: Mapping[str, int]) -> Mapping[str, Any]:
        """Server, after each round, privacy parts only: the guarantee so far, as JSON.

        ``visits`` counts training messages by client; local differential privacy computes epsilon
        from the largest count.
        """
        return {}
