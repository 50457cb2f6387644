"""For tests: every message goes through bytes, so a smuggled Python reference shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedshift.core.message import Broadcast, Lost, Update
from fedshift.transports.inprocess import InProcess


class Wire(InProcess):
    """As in process, but mail and replies are serialised, and visited in reverse order."""

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies made from bytes; a receiver must not depend on their order."""
        for message in reversed(messages):
            reply = self.visit(Broadcast.from_bytes(message.to_bytes()))
            yield reply if isinstance(reply, Lost) else Update.from_bytes(reply.to_bytes())
