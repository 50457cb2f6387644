"""Ways to carry mail between the server and the sites, by name."""

from __future__ import annotations

from collections.abc import Callable

from fedshift.client import Worker
from fedshift.server import Transport
from fedshift.transports.inprocess import InProcess
from fedshift.transports.wire import Wire

TRANSPORTS: dict[str, Callable[[Worker], Transport]] = {"inprocess": InProcess, "wire": Wire}

__all__ = ["TRANSPORTS", "InProcess", "Wire"]
