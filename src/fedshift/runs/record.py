"""One run's directory: what is written when, so that killing it loses at most one round."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.files import read_json, readable_errors, write_bytes, write_json
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.base.tree import Tree
from fedshift.core.config import RunConfig, environment, parse_config
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.core.server import Server
from fedshift.core.state import DiskStore, MemoryStore, StateStore
from fedshift.engine.compute import Compute
from fedshift.runs.run_file import write_run_file

Row = dict[str, Any]


class Record:
    """Metrics and ledger of a run, in memory and, given a path, on disk.

    Per round: metrics and ledger lines are appended, then the checkpoint is renamed into place.
    The checkpoint's round is the truth; lines beyond it are dropped when a run is resumed.
    """

    def __init__(
        self,
        config: RunConfig,
        path: Path | None,
        on_reply: Callable[[Update], None] | None = None,
        on_loss: Callable[[Lost], None] | None = None,
    ) -> None:
        self.config, self.path = config, path
        self.on_reply, self.on_loss = on_reply, on_loss
        self.metrics: list[Row] = []
        self.ledger: list[Row] = []
        self.pending: Row | None = None  # the last round, if its scores are still to come
        self._written = {"metrics": 0, "ledger": 0}
        # Where this run's clients keep their state, and where the server keeps what is personal.
        self.store: StateStore = client_store(path) if path else MemoryStore()
        self.personal: StateStore = (
            DiskStore(path / "checkpoints" / "personal") if path else MemoryStore()
        )
        self._roster: Mapping[str, Update] | None = None  # as it was written

    # observer
    def sent(self, message: Broadcast) -> None:
        """Server to client."""
        self._note(message, "down")

    def received(self, update: Update) -> None:
        """Client to server."""
        self._note(update, "up")
        if self.on_reply is not None:
            self.on_reply(update)

    def lost(self, lost: Lost) -> None:
        """A message without an answer that counts."""
        row = {"round": lost.round, "task": lost.task, "client": lost.client}
        self.ledger.append(
            row | {"direction": "lost", "bytes": 0, "kinds": {}, "reason": lost.reason}
        )
        if self.on_loss is not None:
            self.on_loss(lost)

    def note_privacy(self, round_: int, part: str, promise: Mapping[str, Any]) -> None:
        """Which privacy the run has given by the end of a round."""
        row = {"round": round_, "task": "privacy", "client": "", "direction": "none", "bytes": 0}
        self.ledger.append(row | {"kinds": {}, "part": part, "guarantee": dict(promise)})

    def visits(self) -> Counter[str]:
        """How often each client was asked to train, repetitions included."""
        rows = (r for r in self.ledger if (r["task"], r["direction"]) == ("train", "down"))
        return Counter(row["client"] for row in rows)

    def losses(self) -> dict[str, list[Row]]:
        """Who was lost when, and why; by client."""
        out: dict[str, list[Row]] = defaultdict(list)
        for row in self.ledger:
            if row["direction"] == "lost":
                out[row["client"]].append({k: row[k] for k in ("round", "task", "reason")})
        return dict(sorted(out.items()))

    def unscored(self, round_: int) -> list[str]:
        """Clients whose scores are missing in a round: their last word was a loss."""
        rows = takewhile(lambda row: row["round"] == round_, reversed(self.ledger))
        last: dict[tuple[str, str], str] = {}
        for row in rows:
            if row["task"] in ("score", "assess") and row["direction"] in ("up", "lost"):
                last.setdefault((row["client"], row["task"]), row["direction"])
        return sorted({client for (client, _), word in last.items() if word == "lost"})

    def _note(self, message: Broadcast | Update, direction: str) -> None:
        row = {"round": message.round, "task": message.task, "client": message.client}
        kinds = message.weigh()
        self.ledger.append(
            row | {"direction": direction, "bytes": sum(kinds.values()), "kinds": kinds}
        )

    def traffic(self, task: str | None = None) -> dict[str, int]:
        """Bytes by direction, of one task or of all."""
        out = {"down": 0, "up": 0}
        for row in self.ledger:
            if task in (None, row["task"]) and row["direction"] in out:
                out[row["direction"]] += row["bytes"]
        return out

    # files
    def create(self, compute: Compute) -> None:
        """Write the configuration; fails before any training if the folder cannot be written."""
        if self.path is not None:
            write_json(self.path / "config.json", config_json(self.config, compute))
            write_run_file(self.path, self.config, compute)

    def commit(self, server: Server, row: Row) -> None:
        """Close a round: append its lines, then put its checkpoint in place."""
        self.metrics.append(row)
        self._close(server)

    def postpone(self, server: Server, row: Row) -> None:
        """Close a round whose scores are still to come: its row waits beside the checkpoint."""
        self.pending = row
        if self.path is not None:
            write_json(self._waiting(server.round), row)
        self._close(server)

    def settle(self) -> None:
        """The row that waited is complete."""
        assert self.pending is not None
        self.metrics.append(self.pending)
        self.pending = None

    def _waiting(self, round_: int) -> Path:
        assert self.path is not None
        return self.path / "checkpoints" / f"pending-{round_}.json"

    def _close(self, server: Server) -> None:
        if self.path is None:
            return
        self._append("metrics", self.metrics)
        self._append("ledger", self.ledger)
        if server.roster is not self._roster:  # replaced, never edited
            write_json(self.path / "checkpoints" / "roster.json", pack_roster(server.roster))
            self._roster = server.roster
        tensors = pack_server(server)
        meta = {"round": server.round}
        write_tensors(self.path / "checkpoints" / "server.safetensors", tensors, meta)
        self._waiting(server.round - 1).unlink(missing_ok=True)

    def _append(self, kind: str, rows: list[Row]) -> None:
        assert self.path is not None
        path = self.path / f"{kind}.jsonl"
        text = "".join(json.dumps(row) + "\n" for row in rows[self._written[kind] :])
        with readable_errors(path), path.open("a") as file:
            file.write(text)
        self._written[kind] = len(rows)

    def keep_best(self, model: Mapping[str, Any], round_: int) -> None:
        """Keep the model of the best validation round."""
        if self.path is not None:
            write_tensors(self.path / "best.safetensors", dict(model), {"round": round_})

    def finish(self, server: Server, summary: Row) -> None:
        """Write the final weights, and last the summary: a run with a summary is done."""
        if self.path is None:
            return
        meta = {"round": server.round}
        write_tensors(self.path / "weights.safetensors", server.shared, meta)
        write_json(self.path / "summary.json", summary)

    def restore(self, server: Server) -> bool:
        """Put the last checkpoint into ``server``, in place; False if there is none."""
        checkpoint = self.path / "checkpoints" / "server.safetensors" if self.path else None
        if checkpoint is None or not checkpoint.exists():
            return False
        tensors, meta = read_tensors(checkpoint)
        server.round = meta["round"]
        unpack_server(server, tensors)
        server.roster = unpack_roster(read_json(checkpoint.with_name("roster.json")))
        self._roster = server.roster
        self.metrics = self._rewind("metrics", server.round)
        self.ledger = self._rewind("ledger", server.round)
        waiting = self._waiting(server.round)
        settled = bool(self.metrics) and self.metrics[-1]["round"] == server.round
        self.pending = read_json(waiting) if waiting.exists() and not settled else None
        return True

    def _rewind(self, kind: str, last: int) -> list[Row]:
        """Drop lines of a round that was not finished, torn ones included."""
        assert self.path is not None
        path = self.path / f"{kind}.jsonl"
        rows = [row for row in read_lines(path) if row["round"] <= last]
        write_bytes(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        self._written[kind] = len(rows)
        return rows


def client_store(path: Path) -> DiskStore:
    """Where the clients of the run in ``path`` keep their state, if they live on its machine."""
    return DiskStore(path / "checkpoints" / "clients")


def config_json(config: RunConfig, compute: Compute) -> Row:
    """The configuration as it is stored, with versions and the way of computing beside it."""
    return {
        "run": config.model_dump(mode="json"),
        "name": config.name,
        "environment": environment(),
        "compute": compute.describe(),
    }


def read_compute(path: Path | None) -> Compute | None:
    """How the run in ``path`` began to compute; None if there is none."""
    file = path / "config.json" if path else None
    held = read_json(file).get("compute") if file and file.exists() else None
    return Compute(**held) if held else None


def read_config(path: Path) -> RunConfig:
    """The configuration of a run directory."""
    if not path.is_dir():
        raise RunError(f"{path} is not a run directory; check the path")
    return parse_config(read_json(path / "config.json"), str(path / "config.json"))


def read_summary(path: Path) -> Row | None:
    """The summary of a finished run, None if it is not finished."""
    file = path / "summary.json"
    found: Row | None = read_json(file) if file.exists() else None
    return found


def read_lines(path: Path) -> list[Row]:
    """Rows of a jsonl file; a torn last line, left by a killed process, is dropped."""
    if not path.exists():
        return []
    rows = []
    with readable_errors(path):
        lines = path.read_text().split("\n")
    for line in lines[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise RunError(f"{path} has a damaged line; restore or delete the run") from None
    return rows


def pack_server(server: Server) -> Tree:
    """Everything the server holds, as tensors; what is personal is in a store of its own."""
    groups = {"shared": server.shared}
    groups |= {f"state/{name}": entries for name, entries in server.state.items()}
    return tree.merge(tree.prefixed(name, entries) for name, entries in groups.items())


def unpack_server(server: Server, tensors: Tree) -> None:
    """Inverse of :func:`pack_server`, in place."""
    server.shared, server.state = tree.under("shared", tensors), defaultdict(dict)
    for key, value in tree.under("state", tensors).items():
        owner, _, entry = key.partition("/")
        server.state[owner][entry] = value


def pack_roster(roster: Mapping[str, Update]) -> Row:
    """Who has enrolled, as JSON."""
    return {c: {"examples": u.examples, "facts": u.facts} for c, u in roster.items()}


def unpack_roster(rows: Row) -> dict[str, Update]:
    """Inverse of :func:`pack_roster`."""
    return {
        c: Update(c, "enrol", 0, examples=r["examples"], facts=r["facts"]) for c, r in rows.items()
    }
