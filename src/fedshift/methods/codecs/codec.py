"""What codecs have in common."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod

from fedshift import (
    Channel,
    Client,
    Server,
    Tree,
    Update,
    tree,
)


class Codec(Channel, ABC):
    """What codecs have in common: they send d = w - theta of every trained entry, encoded.

    Buffers (BatchNorm statistics, counters) are few and travel as they are.
    """

    @abstractmethod
    def pack(self, client: Client, steps: Tree) -> tuple[Tree, Tree]:
        """Entries and payload that leave the site, from the steps d by entry."""

    @abstractmethod
    def unpack(self, server: Server, entries: Tree, payload: Tree) -> Tree:
        """The steps d by entry, as the server sees them."""

    @property
    def is_identity(self) -> bool:
        """Whether the settings leave nothing to encode."""
        return False

    def encode(self, client: Client, update: Update) -> Update:
        """Steps in place of weights."""
        if self.is_identity:
            return update
        keys = [k for k, _ in client.net.named_parameters() if k in update.shared]
        steps = {k: update.shared[k] - client.received[k] for k in keys}
        entries, payload = self.pack(client, steps)
        kept = {k: v for k, v in update.shared.items() if k not in steps}
        own = tree.prefixed(self.name, payload)
        return dataclasses.replace(update, shared=kept | entries, payload=update.payload | own)

    def decode(self, server: Server, update: Update) -> Update:
        """Weights again: theta + d, in the order of the model's entries."""
        if self.is_identity:
            return update
        steps = self.unpack(server, update.shared, tree.under(self.name, update.payload))
        weights = {k: server.shared[k] + d for k, d in steps.items()}
        seen = update.shared | weights
        shared = {k: seen[k] for k in server.shared if k in seen}
        others = {k: v for k, v in update.payload.items() if not k.startswith(f"{self.name}/")}
        return dataclasses.replace(update, shared=shared, payload=others)
