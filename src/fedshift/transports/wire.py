"""For tests: one worker in this process, but every message and reply goes through bytes.

The contract suite compares its results with ``inprocess``: a method that relies on a shared Python
object, on aliased tensors or on the order of replies gives other numbers here. Nothing but
:class:`Message` fields may pass between server and worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedshift.core.message import Broadcast, Lost, Update
from fedshift.transports.inprocess import InProcess


class Wire(InProcess):
    """As ``inprocess``, with messages and replies serialised and the sites in reverse order."""

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies decoded from bytes, last message first: nobody may depend on their order."""
        for message in reversed(messages):
            reply = self.visit(Broadcast.from_bytes(message.to_bytes()))
            yield reply if isinstance(reply, Lost) else Update.from_bytes(reply.to_bytes())
