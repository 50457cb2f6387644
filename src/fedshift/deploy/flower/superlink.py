"""``python -m fedshift.deploy.flower.superlink``: Flower's SuperLink behind the gate.

``deploy.flower.daemons`` starts it at the server. It installs :class:`~fedshift.deploy.gate.Gate`
as middleware and thins out the log; the SuperLink must never listen without the gate, because part
of its interface asks for no password.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware

from fedshift.deploy.folders import ServerPaths
from fedshift.deploy.gate import Gate


def status_of(app: Any, key: bytes) -> str:
    """The status of a public key at the SuperLink: unknown, registered, online or offline."""
    state = app.state.linkstate_factory.state()
    node = state.get_node_id_by_public_key(key)
    found = state.get_node_info(node_ids=[node]) if node is not None else []
    return str(found[0].status) if found else "unknown"


async def status_soon(app: Any, key: bytes) -> str:
    """As :func:`status_of`, in a thread: the database must not block other requests."""
    return await run_in_threadpool(status_of, app, key)


def is_refusal(record: logging.LogRecord) -> bool:
    """Log filter: only requests that were refused, since the others come many times a second."""
    return not isinstance(record.args, tuple) or int(str(record.args[-1])) >= 400


def is_news(record: logging.LogRecord) -> bool:
    """Log filter: no empty lines, and no polling by ``server run``."""
    return record.getMessage() not in ("", "ControlServicer.ListRuns")


def main() -> None:
    """Run the SuperLink until a signal ends it."""
    expects = ServerPaths(Path(os.environ["FEDSHIFT_SERVER"])).expects
    gate: Any = Gate
    extensions.get_middleware = lambda: (Middleware(gate, expects=expects, status_of=status_soon),)
    logging.getLogger("uvicorn.access").addFilter(is_refusal)
    logging.getLogger("flwr").addFilter(is_news)
    flower_superlink()


if __name__ == "__main__":
    main()
