"""How long the server waits for each site, so that slow ones can be seen while a run goes on."""

from __future__ import annotations

import time
from collections import defaultdict

from fedshift.core.message import Update


class Waits:
    """Seconds by client, of the replies to training.

    A wait begins with the message or with the reply before. Where sites are visited one after
    another it is how long a visit takes; where they work at the same time it is what the round
    waited for this one alone.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def sent(self) -> None:
        """A message has left."""
        self._since = time.perf_counter()

    def received(self, update: Update) -> None:
        """A reply has come."""
        now = time.perf_counter()
        if update.task == "train":
            self._seconds[update.client] += now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """The waits since the last call, to a tenth of a millisecond."""
        found, self._seconds = self._seconds, defaultdict(float)
        return {client: round(found[client], 4) for client in sorted(found)}
