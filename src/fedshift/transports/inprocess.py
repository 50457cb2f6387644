"""The shortest way: one worker in this process, tensors handed over as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedshift.base.errors import FedshiftError
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.engine.visit import Worker


class InProcess:
    """Visits the sites one after another on one resident net."""

    reply_lifetime = 1  # the next visit reuses the net
    checks_finite = True

    def __init__(self, worker: Worker, *, lenient: bool = False) -> None:
        self.worker, self.store = worker, worker.store
        self.lenient = lenient  # whether a visit that fails is a loss, or ends the run

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies in the order of the mail, each as soon as it is there."""
        for message in messages:
            yield self.visit(message)

    def visit(self, message: Broadcast) -> Update | Lost:
        """One site's reply, or why there is none."""
        try:
            return self.worker.visit(message)
        except FedshiftError as error:
            if not self.lenient:
                raise
            return Lost(message.client, message.task, message.round, str(error))

    def close(self) -> None:
        """Nothing to give back."""
