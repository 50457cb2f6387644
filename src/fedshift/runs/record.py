"""One run's directory: what is written when, so that killing the process loses at most one round.

A session writes through :class:`Record`; results, reports and deployments read with the functions
below. Files are JSON, JSON lines and safetensors; nothing is ever unpickled.

The order of writing is what makes a run resumable after ``kill -9``:

1. Before round 1: ``config.json`` and ``experiment.toml``.
2. During round t: each visited client's state and personal entries, in files named after the round.
   Those of its last finished round are kept beside them, and training reads only what is older than
   the round to be trained (``core.state``).
3. At the end of round t: its complete model in ``best/t`` if a protocol would select it
   (``runs.best``); lines appended to ``metrics.jsonl`` and ``ledger.jsonl``; ``roster.json`` if it
   changed; and last the checkpoint ``server.safetensors``, renamed into place. That rename is the
   commit: round t is finished. Then the models of rounds that are no longer selected go.
4. After the last round: ``weights.safetensors``, then ``summary.json``: the run is done.

A process killed before the rename leaves the checkpoint of round t - 1. Resuming drops all lines of
later rounds, a half-written last line included, ignores newer client states and repeats round t
with the same result. Whatever is added to a run must be written before the rename.

A power failure is stricter, because the disk need not keep the order of writing. The checkpoint is
written ``durable``: all that the round has written is on the disk before the checkpoint's name is,
and the name before the next round begins.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.files import from_json, read_json, readable_errors, write_bytes, write_json
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.base.tree import Tree
from fedshift.core.config import RunConfig, environment, parse_config
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.core.server import Server
from fedshift.core.state import DiskStore, MemoryStore, StateStore
from fedshift.engine.compute import Compute
from fedshift.runs import best
from fedshift.runs.contents import LEDGER, METRICS, ROSTER, SUMMARY, VISITS, checked
from fedshift.runs.ledger import Ledger
from fedshift.runs.run_file import write_run_file
from fedshift.runs.seal import Seal
from fedshift.runs.spending import Spending
from fedshift.runs.summary import selected_rounds
from fedshift.runs.waits import Waits

Row = dict[str, Any]


class Record:
    """Metrics and ledger of a run, in memory and, given a path, on disk.

    It is the server's observer: every message in either direction becomes a line of the ledger.
    Scores that are piggybacked on the next round's messages (``experiment.session``) are not known
    when their round ends; such a row is ``pending`` until they are.
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
        self.book = Ledger()
        self.pending: Row | None = None  # row of the last round while its scores are missing
        self.spending: Spending | None = None  # set where a privacy part accounts for requests
        self.waits = Waits()
        self._written = {"metrics": 0, "ledger": 0}
        # States of simulated clients, and the server's copies of personal entries.
        self.store: StateStore = client_store(path) if path else MemoryStore()
        self.personal: StateStore = (
            DiskStore(path / "checkpoints" / "personal") if path else MemoryStore()
        )
        self._roster: Mapping[str, Update] | None = None  # the one that is on disk
        self._unsettled = False  # whether models of rounds are on disk that may not be selected
        self._seal: Seal | None = None  # of the files in ``path``, once they are created

    # observer
    @property
    def ledger(self) -> list[Row]:
        """Lines of the ledger so far."""
        return self.book.rows

    def sent(self, message: Broadcast) -> None:
        """Add a message from the server to a client to the ledger."""
        if self.spending is not None and message.task == "train":
            self.spending.ask(message.round, message.client)
        self.book.sent(message)
        self.waits.sent()

    def received(self, update: Update) -> None:
        """Add a reply to the ledger, also one that is rejected later."""
        self.book.received(update)
        self.waits.received(update)
        if self.on_reply is not None:
            self.on_reply(update)

    def lost(self, lost: Lost) -> None:
        """Add a message that got no valid reply to the ledger, with the reason."""
        self.book.lost(lost)
        if self.on_loss is not None:
            self.on_loss(lost)

    def note_privacy(self, round_: int, part: str, promise: Mapping[str, Any]) -> None:
        """Add to the ledger what a privacy part guarantees at the end of a round."""
        self.book.note(round_, "privacy", "", part=part, guarantee=dict(promise))

    def note_capped(self, round_: int, weights: Mapping[str, float], most: float) -> None:
        """Add to the ledger whose weight was bounded, and what it would have been."""
        for client, weight in sorted(weights.items()):
            reason = f"a weight of {weight:.4g} in the mean, and max_weight is {most:g}"
            self.book.note(round_, "weight", client, weight=weight, reason=reason)

    def note_facts(self, round_: int, client: str, text: str) -> None:
        """Add to the ledger what a remote site reported about itself before it was asked to train.

        Not part of ``traffic``, which is that of the method, the same wherever sites are.
        """
        size = len(text.encode())
        told = {"direction": "up", "bytes": size, "kinds": {"facts": size}}
        self.book.note(round_, "facts", client, **told)

    def visits(self) -> Counter[str]:
        """How often each client was asked to train, repeated requests included.

        Privacy accounting uses it: a request counts even if its reply was lost or its round was
        repeated. The ledger is the fallback for a run that began before requests were counted.
        """
        listed = self.book.visits()
        return listed if self.spending is None else listed | self.spending.visits()

    def losses(self) -> dict[str, list[Row]]:
        """Round, task and reason of every loss, by client."""
        return self.book.losses()

    def unscored(self, round_: int) -> list[str]:
        """Clients whose scores are missing in a round."""
        return self.book.unscored(round_)

    def traffic(self, task: str | None = None) -> dict[str, int]:
        """Bytes by direction, for one task or for all of them."""
        return self.book.traffic(task)

    # files
    def create(self, compute: Compute) -> None:
        """Write the configuration; an unwritable folder is an error before any training."""
        if self.path is not None:
            content = config_json(self.config, compute)
            write_json(self.path / "config.json", content, durable=True)
            write_run_file(self.path, self.config, compute)
            self._seal = Seal.of(self.path, self.config, compute)

    def commit(self, server: Server, row: Row) -> None:
        """Finish a round with a complete row: append its lines, then replace the checkpoint."""
        self.metrics.append(row)
        self._close(server)

    def postpone(self, server: Server, row: Row) -> None:
        """Finish a round whose scores from the sites come with the next round's replies.

        The row is written beside the checkpoint, before it: a run that is killed and resumed in
        between finds the row and asks for the scores again.
        """
        self.pending = row
        if self.path is not None:
            write_json(self._pending_path(server.round), row)
        self._close(server)

    def complete_pending(self) -> None:
        """Move the pending row, now complete, to the metrics.

        It reaches the disk when the round that brought the scores is committed.
        """
        assert self.pending is not None
        self.metrics.append(self.pending)
        self.pending = None

    def _pending_path(self, round_: int) -> Path:
        """Where the row of a round waits for its scores."""
        assert self.path is not None
        return self.path / "checkpoints" / f"pending-{round_}.json"

    def _close(self, server: Server) -> None:
        """Write a finished round; the checkpoint comes last, see the module's docstring.

        The row that was pending before this round is in the metrics by now, so its file is deleted.
        """
        if self.path is None:
            return
        self._append("metrics", self.metrics)
        self._append("ledger", self.ledger)
        if server.roster is not self._roster:  # a roster is replaced, never edited
            write_json(self.path / "checkpoints" / "roster.json", pack_roster(server.roster))
            self._roster = server.roster
        tensors = pack_server(server)
        meta = {"round": server.round, "visits": server.visits}
        checkpoint = self.path / "checkpoints" / "server.safetensors"
        sealed = {"seal": self._sealed(server.round)}
        write_tensors(checkpoint, tensors, meta | sealed, durable=True)
        self._pending_path(server.round - 1).unlink(missing_ok=True)
        self._settle_best()

    def _sealed(self, round_: int) -> Row:
        assert self._seal is not None
        chosen = set(selected_rounds(self.config, self.metrics).values())
        return self._seal.take(round_, self._pending_path(round_), chosen)

    def _append(self, kind: str, rows: list[Row]) -> None:
        """Append the rows that are not on disk yet."""
        assert self.path is not None
        path = self.path / f"{kind}.jsonl"
        with readable_errors(path), path.open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows[self._written[kind] :]))
        self._written[kind] = len(rows)

    def keep_best(self, model: Tree, scoring: Tree, row: Row) -> None:
        """Keep the complete model of a round if a protocol would select it; its row comes after.

        Where the last round is selected whatever its score, only the last one is kept.
        """
        scenario = self.config.scenario
        chosen = selected_rounds(self.config, [*self.metrics, row]).values()
        early = scenario.selection in ("last", "last5") and row["round"] < scenario.rounds
        if self.path is not None and row["round"] in chosen and not early:
            best.keep_round(self.path, row["round"], model, scoring)
            self._unsettled = True

    def _settle_best(self) -> None:
        """Remove the models of rounds that are no longer selected; the choice is on disk by now."""
        if self.path is not None and self._unsettled:
            chosen = selected_rounds(self.config, self.metrics)
            best.settle(self.path, set(chosen.values()), next(iter(chosen.values()), None))
            self._unsettled = False

    def describe_model(self, shape: Sequence[int], classes: Sequence[str]) -> None:
        """Write what somebody who loads the model has to know about its inputs and outputs."""
        if self.path is not None:
            about = {"shape": list(shape), "classes": list(classes)}
            write_json(self.path / best.FOLDER / "model.json", about)

    def finish(self, server: Server, summary: Row) -> None:
        """Write the final weights, then the summary: a run with a summary is done."""
        if self.path is None:
            return
        meta = {"round": server.round}
        write_tensors(self.path / "weights.safetensors", server.shared, meta, durable=True)
        write_json(self.path / "summary.json", summary, durable=True)

    def restore(self, server: Server) -> bool:
        """Load the last checkpoint into ``server``, in place; False if there is none.

        A pending row is taken up again unless the metrics have it already, which happens if the
        process was killed after the lines of the next round were appended and before its
        checkpoint.
        """
        if self.path is None or self._seal is None:
            return False
        checkpoint = self.path / "checkpoints" / "server.safetensors"
        if not checkpoint.exists():
            self._seal.require_new()
            return False
        tensors, meta = read_tensors(checkpoint)
        server.round = round_of(meta, checkpoint)
        if "seal" in meta:  # not in runs that began before there were any
            self._seal.require(meta["seal"], server.round, self._pending_path(server.round))
        unpack_server(server, tensors)
        roster = checkpoint.with_name("roster.json")
        server.roster = unpack_roster(checked(read_json(roster), ROSTER, roster))
        self._roster = server.roster
        server.visits = visits_of(meta, server.roster, checkpoint)
        self.metrics = self._rewind("metrics", server.round)
        self.book.rows = self._rewind("ledger", server.round)
        waiting = self._pending_path(server.round)
        settled = bool(self.metrics) and self.metrics[-1]["round"] == server.round
        self.pending = None
        if waiting.exists() and not settled:
            (self.pending,) = checked([read_json(waiting)], METRICS, waiting)
        self._unsettled = True
        self._settle_best()
        return True

    def _rewind(self, kind: str, last: int) -> list[Row]:
        """Drop the lines of a round that was not finished, a half-written one included."""
        assert self.path is not None
        path = self.path / f"{kind}.jsonl"
        rows = [row for row in read_lines(path) if row["round"] <= last]
        if self._seal is None or not self._seal.found:  # it has cut the file already
            text = "".join(json.dumps(row) + "\n" for row in rows)
            write_bytes(path, text.encode(), durable=True)
        self._written[kind] = len(rows)
        return rows


def client_store(path: Path) -> DiskStore:
    """The store of client states in a run directory, for clients on the same machine."""
    return DiskStore(path / "checkpoints" / "clients")


def config_json(config: RunConfig, compute: Compute) -> Row:
    """The content of ``config.json``: configuration, package versions and compute settings."""
    return {
        "run": config.model_dump(mode="json"),
        "name": config.name,
        "environment": environment(),
        "compute": compute.describe(),
    }


def read_config(path: Path) -> RunConfig:
    """The configuration of a run directory."""
    if not path.is_dir():
        raise RunError(f"{path} is not a run directory; check the path")
    return parse_config(read_json(path / "config.json"), str(path / "config.json"))


def read_summary(path: Path) -> Row | None:
    """The summary of a finished run, None if it is not finished."""
    file = path / "summary.json"
    found: Row | None = checked(read_json(file), SUMMARY, file) if file.exists() else None
    return found


def read_lines(path: Path) -> list[Row]:
    """Rows of a run's metrics or ledger; a half-written last line of a killed process is dropped.

    Each row is checked: whoever reads it may rely on its fields.
    """
    if not path.exists():
        return []
    with readable_errors(path):
        lines = path.read_bytes().split(b"\n")
    try:
        rows = [from_json(line) for line in lines[:-1]]
    except (ValueError, RecursionError):
        raise RunError(f"{path} has a damaged line; restore or delete the run") from None
    found: list[Row] = checked(rows, LEDGER if path.stem == "ledger" else METRICS, path)
    return found


def round_of(meta: Row, path: Path) -> int:
    """The round of a checkpoint."""
    found = meta.get("round")
    if type(found) is not int or found < 0:
        raise RunError(f"{path} is damaged: its round is {found!r}; restore it, or delete the run")
    return found


def visits_of(
    meta: Row, roster: Mapping[str, Update], path: Path
) -> dict[str, tuple[int, int] | None]:
    """When clients were last visited; runs that began before it was kept do not know."""
    if "visits" not in meta:
        return dict.fromkeys(roster)
    found = checked(meta["visits"], VISITS, path)
    return {client: None if pair is None else tuple(pair) for client, pair in found.items()}


def pack_server(server: Server) -> Tree:
    """Shared entries and the parts' server state as one tree; personal entries are stored apart."""
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
    """The enrolled clients as JSON, without the parts' summaries."""
    return {c: {"examples": u.examples, "facts": u.facts} for c, u in roster.items()}


def unpack_roster(rows: Row) -> dict[str, Update]:
    """Inverse of :func:`pack_roster`."""
    return {
        c: Update(c, "enrol", 0, examples=r["examples"], facts=r["facts"]) for c, r in rows.items()
    }
