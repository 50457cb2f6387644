"""How long a connection may take to say what it wants: uvicorn by itself waits for ever.

``service`` gives the protocol to uvicorn. Who opens a connection and sends no whole request head in
time is answered with 408 and closed, so that such connections cannot fill the service. How long a
body may take is the service's own concern.
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol for HTTP, with a limit for the head of each request."""
    return type("Patient", (Patient,), {"seconds": seconds})


class Patient(H11Protocol):
    """Counts from the connection's beginning, or from the first byte of a further request."""

    seconds = 30.0
    limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count."""
        super().connection_made(transport)
        self.limit = self.loop.call_later(self.seconds, self.give_up)

    def data_received(self, data: bytes) -> None:
        """Stop counting once the head is there; begin again with the first bytes of another."""
        super().data_received(data)
        if self.under_way():
            self.forget()
        elif self.limit is None and self.conn.trailing_data[0]:
            self.limit = self.loop.call_later(self.seconds, self.give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self.forget()
        super().connection_lost(exc)

    def under_way(self) -> bool:
        """Whether a request is being read, worked on or answered."""
        cycle = self.cycle  # None before the first request
        return bool(cycle) and not cycle.response_complete

    def forget(self) -> None:
        """Stop counting."""
        if self.limit is not None:
            self.limit.cancel()
        self.limit = None

    def give_up(self) -> None:
        """Answer 408 and close."""
        self.limit = None
        if self.under_way() or self.transport.is_closing():
            return
        told = json.dumps({"error": f"no whole request within {self.seconds:g} seconds"}).encode()
        head = "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(told)}\r\n\r\n"
        self.transport.write(head.encode() + told)
        self.transport.close()
