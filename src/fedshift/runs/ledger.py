"""The ledger of a run: a line for every message, loss and promise, in an order that never varies.

``runs.record`` writes it, and sums and reports read it. Replies arrive in any order, and another
one under each transport; their lines stand in the order of sending, exchange by exchange, so that
the ledger of a run is the same wherever its clients are. Nothing here keeps a tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from fedshift.core.message import UNASKED, Broadcast, Lost, Update

Row = dict[str, Any]
Place = tuple[int, str, str]  # of a reply within its exchange: number of the message, client, task


class Ledger:
    """Lines of the ledger, in memory; ``rows`` may be replaced when a run is resumed."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._asked: dict[tuple[str, str], int] = {}  # messages of the exchange under way
        self._places: list[Place] = []  # of its replies so far, which are the last rows

    def sent(self, message: Broadcast) -> None:
        """Add a message from the server; the first one after replies begins another exchange."""
        if self._places:
            self._asked, self._places = {}, []
        self._asked[message.client, message.task] = len(self._asked)
        self.rows.append(_row(message, "down"))

    def received(self, update: Update) -> None:
        """Add a reply, also one that is rejected later."""
        self._insert(_row(update, "up"))

    def lost(self, lost: Lost) -> None:
        """Add a message that got no valid reply, with the reason; after the reply, if one came."""
        row = {"round": lost.round, "task": lost.task, "client": lost.client}
        self._insert(row | {"direction": "lost", "bytes": 0, "kinds": {}, "reason": lost.reason})

    def _insert(self, row: Row) -> None:
        """Put a row where its message was among those of the exchange."""
        client, task = str(row["client"]), str(row["task"])
        place = self._asked.get((client, task), len(self._asked)), client, task
        at = bisect_right(self._places, place)
        self.rows.insert(len(self.rows) - len(self._places) + at, row)
        self._places.insert(at, place)

    def note(self, round_: int, task: str, client: str, **told: Any) -> None:
        """Add a line about something that is no message; ``told`` may say its direction."""
        self._asked, self._places = {}, []
        row = {"round": round_, "task": task, "client": client, "direction": "none", "bytes": 0}
        self.rows.append(row | {"kinds": {}} | told)

    def visits(self) -> Counter[str]:
        """How often each client was asked to train, repeated requests included."""
        rows = (r for r in self.rows if (r["task"], r["direction"]) == ("train", "down"))
        return Counter(row["client"] for row in rows)

    def losses(self) -> dict[str, list[Row]]:
        """Round, task and reason of every loss, by client."""
        out: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            if row["direction"] == "lost":
                out[row["client"]].append({k: row[k] for k in ("round", "task", "reason")})
        return dict(sorted(out.items()))

    def capped(self) -> dict[str, dict[str, float]]:
        """Clients whose weight was bounded: in how many rounds, and the largest that it was."""
        out: dict[str, dict[str, float]] = {}
        for row in self.rows:
            if row["task"] == "weight":
                was = out.setdefault(row["client"], {"rounds": 0, "weight": 0.0})
                was["rounds"] += 1
                was["weight"] = max(was["weight"], row["weight"])
        return dict(sorted(out.items()))

    def unscored(self, round_: int) -> list[str]:
        """Clients whose scores are missing in a round: the latest request to score was lost.

        Read from the end of the ledger, where the lines about scoring this round are. Under
        ``on_loss=wait`` a loss may be followed by a reply; the latest line counts.
        """
        rows = takewhile(lambda row: row["round"] == round_, reversed(self.rows))
        last: dict[tuple[str, str], str] = {}
        for row in rows:
            if row.get("reason") == UNASKED:  # a reply that came twice; the first one counts
                continue
            if row["task"] in ("score", "assess") and row["direction"] in ("up", "lost"):
                last.setdefault((row["client"], row["task"]), row["direction"])
        return sorted({client for (client, _), direction in last.items() if direction == "lost"})

    def traffic(self, task: str | None = None) -> dict[str, int]:
        """Bytes by direction, for one task or for all of them."""
        out = {"down": 0, "up": 0}
        for row in self.rows:
            counted = row["task"] not in ("facts", "preparation") and task in (None, row["task"])
            if counted and row["direction"] in out:
                out[row["direction"]] += row["bytes"]
        return out


def _row(message: Broadcast | Update, direction: str) -> Row:
    """A message's size in bytes, by kind of content."""
    row = {"round": message.round, "task": message.task, "client": message.client}
    kinds: Mapping[str, int] = message.bytes_by_kind()
    return row | {"direction": direction, "bytes": sum(kinds.values()), "kinds": kinds}
