"""Flower's SuperNode, changed to ask the server for messages every second, not every three.

``deploy.flower.daemons`` runs this file at a site. A site opens no port, it polls the server: with
Flower's pause of 3 s, a message would wait 1.5 s on average until it is fetched, instead of 0.5 s.
Flower has no option for the pause, so the name ``time`` in its polling module is replaced by
:class:`Pace`; the standard module itself is untouched. The file is run by its path and must import
nothing of fedshift: the SuperNode only forwards messages, and torch in it would waste memory.
"""

from __future__ import annotations

import time
from typing import Any

from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

PACE = 1.0  # seconds between two questions for messages; Flower's own is 3


class Pace:
    """Replaces the module ``time``, with a ``sleep`` of at most ``PACE``."""

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep, but not longer than ``PACE``."""
        time.sleep(min(seconds, PACE))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def main() -> None:
    """Run the SuperNode until a signal ends it."""
    vars(start_client_internal)["time"] = Pace()
    flower_supernode()


if __name__ == "__main__":
    main()
