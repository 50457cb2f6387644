"""What a run has spent of its sites' privacy: ``privacy.jsonl``, written before anything is sent.

A session with a privacy part begins each round here, the record adds every request to train, and
the parts compute epsilon from what they find. Unlike the ledger, whose lines of an unfinished round
are dropped when a run is resumed, a line here is never taken back: what a site was asked for may
have been answered with noise of its own, and whoever saw both answers knows more than one tells. So
each line is on the disk before the message that it is about leaves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from fedshift.core.server import RoundSpent
from fedshift.runs.durable_lines import DurableLines

FILE = "privacy.jsonl"
EVENTS = ("begun", "asked", "closed")
Row = dict[str, Any]


class Spending:
    """Rounds begun, requests to train, and how rounds ended; in memory, and in ``path`` if given.

    One line each: ``{"round": 3, "event": "begun"}``, then ``"asked"`` with the client, then
    ``"closed"`` with the number of sites enrolled, how many were asked, whether all replied, and
    whether the cohort was drawn from a secret.
    """

    def __init__(self, path: Path | None) -> None:
        self.lines = DurableLines(path / FILE) if path else None
        self.rows: list[Row] = read(self.lines) if self.lines else []

    def begin(self, round_: int) -> None:
        """A round is about to begin, perhaps again."""
        self._write({"round": round_, "event": "begun"})

    def ask(self, round_: int, client: str) -> None:
        """A request to train is about to leave."""
        self._write({"round": round_, "event": "asked", "client": client})

    def close(self, round_: int, *, sites: int, replied: int, secret: bool) -> None:
        """The updates of a round are there, and the new model has not been shown to anybody."""
        asked = {row["client"] for row in self._latest(round_) if row["event"] == "asked"}
        ended = {"sites": sites, "cohort": len(asked), "complete": replied == len(asked)}
        self._write({"round": round_, "event": "closed"} | ended | {"secret": secret})

    def visits(self) -> Counter[str]:
        """How often each client was asked to train, in repeated rounds too."""
        return Counter(row["client"] for row in self.rows if row["event"] == "asked")

    def rounds(self, last: int) -> list[RoundSpent]:
        """Every round up to ``last``, with how often it began and how it ended.

        One without a line, of a run that began before there were any, counts as begun once.
        """
        begun: Counter[int] = Counter()
        ended: dict[int, Row] = defaultdict(dict)
        for row in self.rows:
            if row["event"] == "begun":
                begun[row["round"]] += 1
            elif row["event"] == "closed":
                ended[row["round"]] = row
        keys = ("sites", "cohort", "complete", "secret")
        return [
            RoundSpent(t, begun[t] or 1, **{k: ended[t][k] for k in keys if k in ended[t]})
            for t in range(1, last + 1)
        ]

    def _latest(self, round_: int) -> list[Row]:
        """Lines of a round since it last began."""
        rows = [row for row in self.rows if row["round"] == round_]
        last = max((i for i, row in enumerate(rows) if row["event"] == "begun"), default=0)
        return rows[last:]

    def _write(self, row: Row) -> None:
        """Add a row and wait until it is on the disk."""
        self.rows.append(row)
        if self.lines is not None:
            self.lines.append(row)


def read(lines: DurableLines) -> list[Row]:
    """Every row; raises if one is not of the form that we write."""
    rows = lines.read()
    for row in rows:
        client = row.get("client", "") if row.get("event") == "asked" else ""
        well = isinstance(row.get("round"), int) and isinstance(client, str)
        if not well or row.get("event") not in EVENTS or (row["event"] == "asked" and not client):
            raise lines.damaged()
    return rows
