"""Runs as they go: follow a run directory that another process writes, reading only what is new.

``fedshift watch`` draws what it finds here, on a terminal and as a page. It only reads: it takes no
lock, writes no file and must never be in the way of a run. It imports neither torch nor the
configuration of a run, so that a view opens at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from fedshift.base.errors import RunError
from fedshift.base.files import from_json, read_json
from fedshift.base.locks import writer_of
from fedshift.runs.contents import BEGUN, LEDGER, METRICS, checked

Row = dict[str, Any]
State = Literal["starting", "running", "finished", "killed", "stopped"]
RECENT = 20  # rounds from which the time of the next ones is guessed
SLOW = 3.0  # a site is slow if the server waits for it so many times as long as for the median one
SHARE = 0.2  # and for at least this share of the round
STALLED = 5.0  # a run stalls if no round ends within so many times the usual


@dataclass
class Appended:
    """The whole lines of a file that grows; ``read`` gives those that are new since the last call.

    A run that is resumed drops the lines of the round that was not finished. The file is then
    shorter, or another one, and everything is read again from its beginning (``restarted``).
    """

    path: Path
    at: int = 0  # bytes that were read
    file: int = 0  # its inode
    restarted: bool = False

    def read(self) -> list[bytes]:
        """The lines that have been completed since; none if the file is not there."""
        self.restarted = False
        try:
            found = self.path.stat()
            if found.st_ino != self.file or found.st_size < self.at:
                self.restarted, self.at, self.file = self.at > 0, 0, found.st_ino
            if found.st_size == self.at:
                return []
            with self.path.open("rb") as file:
                file.seek(self.at)
                blob = file.read()
        except FileNotFoundError:
            self.restarted, self.at, self.file = self.at > 0, 0, 0
            return []
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror}; check the path") from None
        whole = blob[: blob.rfind(b"\n") + 1]
        self.at += len(whole)
        return whole.splitlines()


@dataclass(frozen=True)
class Loss:
    """A message to a site that got no valid reply."""

    round: int
    task: str
    client: str
    reason: str


@dataclass
class Watched:
    """One run directory that somebody may be writing; :meth:`refresh` reads what is new.

    ``rows`` has one entry per committed round: ``round``, ``seconds`` (training and scoring),
    ``losses`` by term, ``waited`` (seconds by site) and ``scores``, by protocol the values ``val``
    and ``test`` (AVG over domains) and ``domains`` (test, by domain). Everything else of a round,
    such as confusion matrices, is not kept, so that hundreds of runs can be followed.
    """

    path: Path
    method: str = ""
    scenario: str = ""
    seed: int = 0
    total: int = 0  # rounds of the whole run
    rows: list[Row] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)
    state: State = "starting"
    quiet_for: float = 0.0  # seconds since the last line was written
    problem: str = ""  # why it cannot be read, in a list of runs

    def __post_init__(self) -> None:
        self._metrics = Appended(self.path / "metrics.jsonl")
        self._ledger = Appended(self.path / "ledger.jsonl")

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.name

    @property
    def round(self) -> int:
        """The last committed round; 0 before the first."""
        return int(self.rows[-1]["round"]) if self.rows else 0

    @property
    def losses(self) -> Mapping[str, float]:
        """The loss terms of the last round, by name."""
        return self.rows[-1]["losses"] if self.rows else {}

    @property
    def scores(self) -> Mapping[str, Row]:
        """The scores of the last scored round, by protocol."""
        return next((row["scores"] for row in reversed(self.rows) if row["scores"]), {})

    @property
    def each(self) -> float | None:
        """Seconds that a round takes, over the last ones; None before the first."""
        return fmean(row["seconds"] for row in self.rows[-RECENT:]) if self.rows else None

    @property
    def left(self) -> float | None:
        """Seconds until it ends, as it goes now; None if it does not go or nothing is known."""
        if self.state != "running" or self.each is None:
            return None
        return max(0.0, self.each * (self.total - self.round) - self.quiet_for)

    @property
    def stalled(self) -> bool:
        """Whether it runs, and the round under way takes much longer than the ones before."""
        each = max(1.0, self.each or 60.0)
        return self.state == "running" and self.quiet_for > STALLED * each

    @property
    def slow(self) -> dict[str, float]:
        """Sites of the last round for which the server waited much longer than for the others."""
        return slow_sites(self.rows[-1]["waited"], self.rows[-1]["seconds"]) if self.rows else {}

    def curve(self, protocol: str, key: str = "test") -> list[tuple[int, float]]:
        """(round, value) of every scored round; ``key`` is test, val or a domain."""
        found = ((r["round"], r["scores"][protocol]) for r in self.rows if protocol in r["scores"])
        pairs = ((n, s[key] if key in ("val", "test") else s["domains"].get(key)) for n, s in found)
        return [(n, value) for n, value in pairs if value is not None]

    def refresh(self) -> bool:
        """Read what has been appended since the last call; whether anything is new."""
        before = (self.state, len(self.rows), len(self.lost), self.total, self.round)
        if not self.total and (self.path / "config.json").exists():
            self._begin()
        self._read_rounds()
        self._read_losses()
        self._look()
        return before != (self.state, len(self.rows), len(self.lost), self.total, self.round)

    def _begin(self) -> None:
        """Read what the run is; the file is written once, before round 1."""
        file = self.path / "config.json"
        held = checked(read_json(file), BEGUN, file)["run"]
        changed = [f"{key}={value}" for key, value in held.get("settings", {}).items()]
        removed = [f"without {part}" for part in held.get("without", ())]
        self.method = ", ".join([held["method"], *changed, *removed])
        self.scenario, self.seed = held["scenario"]["name"], held.get("seed", 0)
        self.total = held["scenario"]["rounds"]

    def _read_rounds(self) -> None:
        lines = self._metrics.read()
        if self._metrics.restarted:
            self.rows.clear()
        elif self.rows and not self._continues(lines):  # cut and written again between two looks
            self.rows.clear()
            self._metrics.at = 0
            lines = self._metrics.read()
        self.rows += map(slim, _parsed(lines, METRICS, self._metrics.path))

    def _continues(self, lines: Sequence[bytes]) -> bool:
        """Whether lines come after those that were read before, as far as one can tell."""
        try:
            found = _parsed(lines[:1], METRICS, self._metrics.path)
        except RunError:
            return False
        return not found or found[0]["round"] > self.round

    def _read_losses(self) -> None:
        lines = self._ledger.read()
        if self._ledger.restarted:
            self.lost.clear()
        told = [line for line in lines if b'"lost"' in line]  # few of very many
        rows = _parsed(told, LEDGER, self._ledger.path)
        self.lost += [
            Loss(row["round"], row["task"], row["client"], row.get("reason", ""))
            for row in rows
            if row["direction"] == "lost"
        ]

    def _look(self) -> None:
        """See whether it is finished, and else whether somebody writes it."""
        self.quiet_for = max(0.0, time.time() - _changed(self.path))
        if (self.path / "summary.json").exists():
            self.state = "finished"
            return
        writer = writer_of(self.path)
        if writer is not None:
            self.state = "running" if writer.alive else "killed"
        else:
            self.state = "stopped" if self.total else "starting"

    def to_json(self) -> Row:
        """All that a view shows of the run, without the history."""
        return {
            "name": self.name,
            "method": self.method,
            "scenario": self.scenario,
            "seed": self.seed,
            "state": self.state,
            "round": self.round,
            "rounds": self.total,
            "seconds_per_round": self.each,
            "seconds_left": self.left,
            "stalled": self.stalled,
            "problem": self.problem,
            "losses": dict(self.losses),
            "scores": dict(self.scores),
            "slow": self.slow,
            "lost": [
                {"round": one.round, "client": one.client, "task": one.task, "reason": one.reason}
                for one in self.lost
            ],
        }


def _parsed(lines: Sequence[bytes], kind: Any, path: Path) -> list[Row]:
    """Lines as checked rows."""
    try:
        rows = [from_json(line) for line in lines]
    except (ValueError, RecursionError):
        raise RunError(f"{path} has a damaged line; restore or delete the run") from None
    found: list[Row] = checked(rows, kind, path) if rows else []
    return found


def slim(row: Mapping[str, Any]) -> Row:
    """What a view needs of a line of the metrics."""
    scores = {
        protocol: {
            "val": found["val"]["avg"],
            "test": found["test"]["avg"],
            "domains": found["test"]["domains"],
        }
        for protocol, found in row.get("scores", {}).items()
    }
    return {
        "round": row["round"],
        "seconds": row.get("seconds", 0.0) + row.get("seconds_scoring", 0.0),
        "losses": row.get("losses", {}),
        "scores": scores,
        "waited": row.get("seconds_waited", {}),
    }


def slow_sites(waited: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Sites for which the server waited several times as long as for the median one.

    Only those count that made up a good part of the round.

    >>> slow_sites({"a": 1.0, "b": 1.2, "c": 9.0}, 11.2)
    {'c': 9.0}
    """
    if not waited:
        return {}
    least = max(SLOW * median(waited.values()), SHARE * seconds)
    return {site: value for site, value in waited.items() if value > least}


def _changed(path: Path) -> float:
    """When a run directory last got a line, or was made."""
    for file in (path / "metrics.jsonl", path / "config.json", path):
        try:
            return file.stat().st_mtime
        except OSError:
            continue
    return time.time()


def _refresh(run: Watched) -> None:
    """Refresh one of several runs, in place."""
    try:
        run.refresh()
        run.problem = ""
    except RunError as error:
        run.problem = str(error)


class Watchlist:
    """The runs below some paths, each a run directory or a folder of them; new ones are found.

    A run that cannot be read has the reason in ``problem``, and the others go on.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = [Path(path) for path in paths]
        self.runs: dict[Path, Watched] = {}
        for path in self.paths:
            if not path.is_dir():
                raise RunError(f"{path} is not a folder; check the path")

    def refresh(self) -> list[Watched]:
        """Every run with what is new in it, in the order in which they were found."""
        for path in self.paths:
            single = (path / "config.json").exists()
            found = [path] if single else sorted(f.parent for f in path.glob("*/config.json"))
            for one in found:
                self.runs.setdefault(one, Watched(one))
        for run in self.runs.values():
            if run.state != "finished":
                _refresh(run)
        return list(self.runs.values())
