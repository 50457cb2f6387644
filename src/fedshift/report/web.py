"""Runs as they go, in the browser: one page on this machine, which asks for what is new.

``fedshift watch`` serves it. The server only reads, answers two addresses and serves no file:
``/`` is the page, ``/runs.json`` what has happened. It listens on the loopback interface, and a
request must name it so in its ``Host`` header: a page from elsewhere whose name was made to point
here (DNS rebinding) is refused. Runs are looked at when somebody asks, so a view that nobody has
open costs nothing.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedshift.base.errors import ConfigError
from fedshift.base.version import __version__
from fedshift.report.page_parts import LIBRARIES, part, policy, render
from fedshift.report.watching import Watched, Watchlist

LOOPBACK = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
SCRIPT = "watch.js"
LEAST = 0.5  # seconds between two looks at the runs, however many views are open
PATIENCE = 10.0  # seconds that a client has to send its request
Told = tuple[int, int, bool]  # of a run: rows, the last one's round, whether its end was seen
Known = Mapping[int, Told]
NOTHING: Told = (0, 0, False)


class LiveView(ThreadingHTTPServer):
    """The server of one view; ``serve_forever`` answers until it is shut down.

    Each connection has a thread: browsers open some that they do not use yet, and one of these must
    not keep the others waiting.
    """

    daemon_threads = True

    def __init__(self, paths: Iterable[Path], port: int = 0, every: float = 2.0) -> None:
        self.runs = Watchlist(paths)
        self.every = every
        self.looked = -LEAST
        self.lock = Lock()
        try:
            super().__init__((LOOPBACK, port), Answering)
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used: {error.strerror}; choose another, or 0 for a free one"
            ) from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    @property
    def hosts(self) -> set[str]:
        """What a request may call us."""
        return {f"{name}:{self.server_address[1]}" for name in NAMES}

    @cached_property
    def page(self) -> bytes:
        """The page; it holds nothing of any run."""
        text = render(
            "watch.html.j2", SCRIPT, connect="'self'", version=__version__, every=self.every
        )
        return text.encode()

    @cached_property
    def policy(self) -> str:
        """The policy of the page, as a header."""
        scripts = [part(name) for name in (*LIBRARIES, SCRIPT)]
        return f"{policy(scripts, chr(39) + 'self' + chr(39))}; frame-ancestors 'none'"

    def news(self, known: Known) -> dict[str, Any]:
        """What somebody who knows ``known`` has not seen: rows that are new, and every state."""
        with self.lock:
            if time.monotonic() - self.looked >= LEAST:
                self.runs.refresh()
                self.looked = time.monotonic()
            found = [(run, known.get(i, NOTHING)) for i, run in enumerate(self.runs.runs.values())]
            return {
                "runs": [
                    changes(run, i, told)
                    for i, (run, told) in enumerate(found)
                    if not (run.state == "finished" and told[2])
                ]
            }


def changes(run: Watched, index: int, known: Told) -> dict[str, Any]:
    """The state of a run, and its rows after those that are known.

    A run that was resumed may have dropped rows: if the last known one is not where it was, all
    are sent (``whole``).
    """
    count, last, _ = known
    whole = count > len(run.rows) or (count > 0 and run.rows[count - 1]["round"] != last)
    rows = run.rows if whole else run.rows[count:]
    new = [
        [
            row["round"],
            row["losses"],
            {p: [score["test"], score["val"]] for p, score in row["scores"].items()},
        ]
        for row in rows
    ]
    return run.to_json() | {"id": index, "whole": whole, "rows": new}


def read_known(text: str) -> dict[int, Told]:
    """What a view has: ``run.rows.round``, with an ``f`` if it has seen the end; joined by commas.

    >>> read_known("0.12.24,3.5.5f")
    {0: (12, 24, False), 3: (5, 5, True)}
    """
    if not re.fullmatch(r"(\d{1,9}\.\d{1,9}\.\d{1,9}f?(,|$))*", text):
        raise ValueError(text)
    words = ([*word.rstrip("f").split("."), word] for word in text.split(",") if word)
    return {int(i): (int(n), int(r), word.endswith("f")) for i, n, r, word in words}


def as_json(value: Any) -> bytes:
    """JSON that browsers read: a loss that is not finite is null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return as_json(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Answering(BaseHTTPRequestHandler):
    """One request; only GET, only our two addresses, only under our own name."""

    server: LiveView
    server_version = "fedshift"
    sys_version = ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer with the page or with what is new."""
        if self.headers.get("Host") not in self.server.hosts:
            self.refuse(HTTPStatus.FORBIDDEN)
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self.answer(self.server.page, "text/html; charset=utf-8")
        elif address.path == "/runs.json":
            try:
                known = read_known(parse_qs(address.query).get("have", [""])[0])
            except ValueError:
                self.refuse(HTTPStatus.BAD_REQUEST)
                return
            self.answer(as_json(self.server.news(known)), "application/json")
        else:
            self.refuse(HTTPStatus.NOT_FOUND)

    def answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send a body with headers that keep browsers from guessing, framing or keeping it."""
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.server.policy,
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: HTTPStatus) -> None:
        """Say no, and nothing else."""
        self.answer(f"{status.value} {status.phrase}\n".encode(), "text/plain", status)

    def log_message(self, *_args: Any) -> None:
        """Nothing: a view that asks every second must not fill a terminal."""
