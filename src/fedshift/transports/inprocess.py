"""One worker in the server's own process; tensors are handed over without a copy.

The transport ``inprocess``, the reference for all others and the fastest one for small runs. Its
replies lie in the memory of the resident net, so nobody may keep one beyond the next visit without
a copy (:meth:`~fedshift.core.message.Update.own`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedshift.base.errors import FedshiftError
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.engine.visit import Worker


class InProcess:
    """Visits the sites one after another, on one net that stays in memory."""

    reply_lifetime = 1  # the next visit trains the net whose tensors this reply holds
    checks_finite = True

    def __init__(self, worker: Worker, *, lenient: bool = False) -> None:
        self.worker, self.store = worker, worker.store
        self.lenient = lenient  # a failed visit is reported as Lost instead of ending the run

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies in the order of the messages; each visit starts when its reply is asked for."""
        for message in messages:
            yield self.visit(message)

    def visit(self, message: Broadcast) -> Update | Lost:
        """One site's reply, or the reason why there is none."""
        try:
            return self.worker.visit(message)
        except FedshiftError as error:
            if not self.lenient:
                raise
            return Lost(message.client, message.task, message.round, str(error))

    def close(self) -> None:
        """Do nothing: there are no processes, sockets or files to release."""
