"""What a Flower node does with a request: say which client it is, or run the visits asked for.

The ClientApp of ``transports.flower.grid`` calls :class:`SiteHandler` for each request, and the
server turns a failure back into an error with :func:`error_from_site`. The module imports nothing
of Flower, so tests need none of it; a site must never act on messages for another client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedshift.base import errors
from fedshift.base.errors import ConfigError, FedshiftError, RunError
from fedshift.base.process import one_thread
from fedshift.base.version import __version__
from fedshift.core.config import RunConfig, parse_config
from fedshift.core.message import Broadcast
from fedshift.engine.visit import Worker
from fedshift.transports.flower.envelope import Envelope, from_envelope, to_envelope

NodeConfig = Mapping[str, Any]  # the node's configuration; where it is silent, that of the run
OpenWorker = Callable[[RunConfig, NodeConfig], Worker]
WhoAmI = Callable[[RunConfig, NodeConfig], str]


@dataclass(frozen=True)
class Header:
    """The run's configuration and the server's version, sent along with every request."""

    run: str  # RunConfig as JSON
    version: str = __version__
    selected: tuple[int, ...] = ()  # rounds whose model would be reported if the run ended now

    @classmethod
    def of(cls, config: RunConfig) -> Header:
        """The header of a run, with this machine's version."""
        return cls(config.model_dump_json())

    def read(self) -> RunConfig:
        """The run's configuration; refuses another version, which might compute other numbers."""
        if self.version != __version__:
            raise ConfigError(
                f"this site has fedshift {__version__}, the server {self.version}; "
                "install the same version"
            )
        return parse_config({"run": json.loads(self.run)}, "the server's message")


def named(run: RunConfig, node: NodeConfig) -> str:  # noqa: ARG001  as WhoAmI has it
    """The client that the node was started as: ``--node-config 'client="berlin"'``."""
    if "client" not in node:
        raise ConfigError(
            "this node does not know which client it is; start it with "
            "--node-config 'client=\"ID\"'"
        )
    return str(node["client"])


@dataclass(frozen=True)
class SiteHandler:
    """Answers requests at a site.

    ``open_worker`` is called for each request; where the process outlives a request, it may return
    the worker that it opened before. ``before`` is told the header, and may put aside what the
    visits would replace.
    """

    open_worker: OpenWorker
    whoami: WhoAmI = named
    before: Callable[[RunConfig, Header], None] | None = None  # any visit

    def introduce(self, header: Header, node: NodeConfig) -> Envelope:
        """Report which client this node is."""
        return Envelope(json.dumps({"client": self.whoami(header.read(), node)}), {})

    def answer(self, header: Header, envelope: Envelope, node: NodeConfig) -> Envelope:
        """Run the visits that the envelope asks for, in order; returns one envelope of updates.

        Each update is copied before the next visit, which reuses the memory of the net.
        """
        run = header.read()
        me = self.whoami(run, node)
        messages = from_envelope(envelope, Broadcast)
        for message in messages:
            if message.client != me:
                raise RunError(
                    f"a message for client {message.client} reached {me}; start the run anew"
                )
        if self.before is not None:
            self.before(run, header)
        with one_thread():
            worker = self.open_worker(run, node)
            return to_envelope([worker.visit(message).own() for message in messages], {})


def error_line(error: Exception) -> str:
    """An error as one line of text, from which :func:`error_from_site` restores it."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"


def error_from_site(client: str, reason: str) -> FedshiftError:
    """The error that a site reported: of the same class if it is one of ours, else a RunError."""
    kind, _, text = reason.partition(": ")
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, FedshiftError):
        return found(text if client in text else f"site {client}: {text}")
    return RunError(f"site {client} failed: {' '.join(reason.split()) or 'no reason given'}")
