"""SIGTERM ends a command as Ctrl-C does.

The command line installs it when it starts, before torch is imported. A library must never take a
signal over, so nothing else does.
"""

from __future__ import annotations

import signal
import threading


class Termination:
    """Lets SIGTERM end a command as Ctrl-C does: what is open is closed, temporary files go.

    By default the kernel ends the process at once, and its folders in /tmp stay. Install it only in
    processes that are ours, and only in their main thread.
    """

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """Take over SIGTERM, unless somebody else has."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:  # noqa: ARG002  a handler's form
        self.asked = True
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the cleaning up
        raise KeyboardInterrupt
