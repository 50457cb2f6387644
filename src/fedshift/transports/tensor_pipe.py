"""The pool's pipe: scalars and tensor locations; the tensors themselves lie in shared memory.

``transports.pool`` has one at each end of a worker's connection; its docstring tells the scheme.
Locations that have not changed since the last message must never be sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from fedshift.base.tree import Tree
from fedshift.core.message import Message
from fedshift.transports.shared_memory import Reader, TensorLocation

SectionLocations = list[dict[str, TensorLocation]]  # location of each entry, by section


@dataclass
class Locations:
    """Locations of tensors, and of whole trees, by the ``id`` of the tensor or tree."""

    of: dict[int, TensorLocation]
    trees: dict[int, dict[str, TensorLocation]] = field(default_factory=dict)

    def layout(self, tree: Tree) -> dict[str, TensorLocation]:
        """The location of each entry of a tree."""
        known = self.trees.get(id(tree))
        return {k: self.of[id(t)] for k, t in tree.items()} if known is None else known

    def with_(self, more: dict[int, TensorLocation]) -> Locations:
        """These locations and ``more``; the cached trees are shared, not copied."""
        return Locations(self.of | more, self.trees) if more else self


class TensorPipe:
    """Messages over a connection; their tensors lie in shared memory.

    A slot is the sender's block that a message uses. Both sides remember what was sent last for
    each slot: locations that have not changed are left out, and the receiver reuses its views. So
    every message must be received, in order.
    """

    def __init__(self, connection: Connection, reader: Reader) -> None:
        self.connection, self.reader = connection, reader
        self._sent_locations: dict[int, SectionLocations] = {}  # sent last, by slot
        self._views: dict[int, list[Tree]] = {}  # received last, by slot

    def send(self, slot: int, message: Message, locations: Locations) -> None:
        """Send a message's scalars, and its tensors' locations if they have changed."""
        layout = [locations.layout(tree) for tree in message.sections()]
        changed = None if self._sent_locations.get(slot) == layout else layout
        self._sent_locations[slot] = layout
        self.connection.send((message.scalars(), slot, changed))

    def receive(self) -> Any:
        """Scalars and sections of a message, or whatever else was sent: ``ready`` or an error."""
        received = self.connection.recv()
        if not isinstance(received, tuple):
            return received
        scalars, slot, changed = received
        if changed is not None:
            self._views[slot] = [self.reader.read_tree(part) for part in changed]
        return scalars, dict(zip(Message.SECTIONS, map(dict, self._views[slot]), strict=True))
