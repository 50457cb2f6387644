"""What a node does with an envelope: who it is, and the visits that are asked of it."""

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

NodeConfig = Mapping[str, Any]  # what the node was started with, over what the run was started with
OpenWorker = Callable[[RunConfig, NodeConfig], Worker]
WhoAmI = Callable[[RunConfig, NodeConfig], str]


@dataclass(frozen=True)
class Header:
    """What every letter says of the run: the server decides it, the site plays it."""

    run: str  # RunConfig as JSON
    version: str = __version__

    @classmethod
    def of(cls, config: RunConfig) -> Header:
        """The header of a run."""
        return cls(config.model_dump_json())

    def read(self) -> RunConfig:
        """The run's configuration; refuses one of another version, which might mean other bits."""
        if self.version != __version__:
            raise ConfigError(
                f"this site has fedshift {__version__}, the server {self.version}; "
                "install the same version"
            )
        return parse_config({"run": json.loads(self.run)}, "the server's message")


def named(run: RunConfig, node: NodeConfig) -> str:  # noqa: ARG001  one answer of several
    """The client that the node was started as: ``--node-config 'client="berlin"'``."""
    if "client" not in node:
        raise ConfigError(
            "this node does not know which client it is; start it with "
            "--node-config 'client=\"ID\"'"
        )
    return str(node["client"])


@dataclass(frozen=True)
class SiteHandler:
    """Answers letters at a site; a worker is opened per letter, unless the opener keeps it."""

    open_worker: OpenWorker
    whoami: WhoAmI = named

    def introduce(self, header: Header, node: NodeConfig) -> Envelope:
        """Which client this node is."""
        return Envelope(json.dumps({"client": self.whoami(header.read(), node)}), {})

    def answer(self, header: Header, envelope: Envelope, node: NodeConfig) -> Envelope:
        """Play every message of the envelope, in order; one envelope of replies."""
        run = header.read()
        me = self.whoami(run, node)
        messages = from_envelope(envelope, Broadcast)
        for message in messages:
            if message.client != me:
                raise RunError(f"mail for client {message.client} came to {me}; start the run anew")
        with one_thread():
            worker = self.open_worker(run, node)
            return to_envelope([worker.visit(message).own() for message in messages], {})


def error_line(error: Exception) -> str:
    """One line that :func:`heard` understands."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"


def error_from_site(client: str, reason: str) -> FedshiftError:
    """The error that a site told of; errors of ours keep their kind, others name the site."""
    kind, _, text = reason.partition(": ")
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, FedshiftError):
        return found(text if client in text else f"site {client}: {text}")
    return RunError(f"site {client} failed: {' '.join(reason.split()) or 'no reason given'}")
