"""What a checkpoint says of the files beside it, so that none is changed or lost unnoticed.

Tensor files carry checksums of their own; lines and JSON do not, and a file that is gone carries
nothing. So ``runs.record`` takes a seal when a round is committed, stores it in the checkpoint, and
asks for it when the run is resumed: a file that is no longer what it was is one line that names it.
Without this, a lost line of the metrics or another number of examples in the roster would give
another result, and nobody would be told.

Files that grow are sealed up to the length that they had. What comes after was written by a round
that was not finished: ``metrics.jsonl`` and ``ledger.jsonl`` are cut back to that length;
``privacy.jsonl``, of which nothing is ever taken back, is not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from fedshift.base.errors import RunError
from fedshift.base.files import readable_errors
from fedshift.base.tensor_files import read_tensors
from fedshift.base.version import __version__
from fedshift.core.config import RunConfig
from fedshift.engine.compute import Compute
from fedshift.runs.contents import checked

CUT = ("metrics.jsonl", "ledger.jsonl")
GROWING = (*CUT, "privacy.jsonl")
ROSTER = "checkpoints/roster.json"
PERSONAL = "checkpoints/personal"
KEPT = "best"


# Of nothing but these: another name could be any file of the machine, or a device without an end.
Growing = Annotated[str, Field(pattern=r"^(metrics|ledger|privacy)\.jsonl$")]
Length = Annotated[int, Field(ge=0)]
Round = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]


class SealContent(BaseModel):
    """The form of a seal; digests are empty where there is no file."""

    version: str
    run: str  # what is computed, and on which device
    lines: dict[Growing, tuple[Length, str]]  # length and digest of files that grow
    roster: str
    pending: str  # the row that waits for its scores
    personal: str  # which personal entries there are
    kept: dict[Round, str]  # the models of selected rounds, by round


SEAL: TypeAdapter[Any] = TypeAdapter(SealContent)


@dataclass
class Seal:
    """The seal of one run directory; files that grow are hashed as they do, not anew each time."""

    path: Path
    run: str
    found: bool = False  # whether there was one when the run was resumed
    _sizes: dict[str, int] = field(default_factory=dict)
    _hashes: dict[str, Any] = field(default_factory=dict)
    # By client: when its personal entries were last written, and their sizes by round.
    _clients: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)
    _models: dict[str, tuple[int, str]] = field(default_factory=dict)  # the same of kept models

    @classmethod
    def of(cls, path: Path, config: RunConfig, compute: Compute) -> Seal:
        """The seal of a run that computes ``config``."""
        return cls(path, json.dumps([config.fingerprint, compute.describe()]))

    def take(self, round_: int, pending: Path, kept: Iterable[int]) -> dict[str, Any]:
        """The seal of the files as they are; call it when all but the checkpoint is written."""
        for name in GROWING:
            self._read_on(name)
        lines = {name: (size, self._of(name)) for name, size in self._sizes.items()}
        found = SealContent(
            version=__version__,
            run=self.run,
            lines=lines,
            roster=_digest(self.path / ROSTER),
            pending=_digest(pending),
            personal=self._personal(round_),
            kept={str(t): self._model(str(t)) for t in sorted(kept)},
        )
        return found.model_dump(mode="json")

    def require(self, found: Any, round_: int, pending: Path) -> None:
        """Raise if a file is not what it was; cut off the lines of a round that was not finished.

        Another version may describe the same run in another way, so that is not compared then.
        """
        checkpoint = self.path / "checkpoints" / "server.safetensors"
        seal = SealContent.model_validate(checked(found, SEAL, checkpoint))
        if seal.version == __version__ and seal.run != self.run:
            raise self._changed("config.json", round_)
        changed: list[str] = []
        for name, (size, digest) in seal.lines.items():
            self._read_on(name, size)
            changed += [name] * ((self._sizes.get(name, 0), self._of(name)) != (size, digest))
        changed += [ROSTER] * (_digest(self.path / ROSTER) != seal.roster)
        changed += [str(pending.relative_to(self.path))] * (_digest(pending) != seal.pending)
        changed += [PERSONAL] * (self._personal(round_) != seal.personal)
        changed += [f"{KEPT}/{t}" for t, digest in seal.kept.items() if self._model(t) != digest]
        if changed:
            raise self._changed(changed[0], round_)
        for kept in seal.kept:
            for file in (self.path / KEPT / kept).rglob("*.safetensors"):
                read_tensors(file)  # its checksum
        self._cut_back()
        self.found = True

    def require_new(self) -> None:
        """Raise if rounds were finished and their checkpoint is gone; else begin with empty files.

        A process killed before its first checkpoint may have written the lines of round 1.
        """
        file = self.path / CUT[0]
        with readable_errors(file):
            rounds = file.read_bytes().count(b"\n") if file.exists() else 0
        if rounds > 1:
            raise RunError(
                f"{self.path} has {rounds} finished rounds and no checkpoint; restore it, or "
                "delete the run and repeat it"
            )
        self._cut_back()

    def _read_on(self, name: str, end: int | None = None) -> None:
        """Hash what a file has gained since the last time, up to ``end``."""
        file = self.path / name
        if not file.exists():
            return
        digest = self._hashes.setdefault(name, hashlib.sha256())
        begin = self._sizes.get(name, 0)
        with readable_errors(file), file.open("rb") as lines:
            lines.seek(begin)
            if end is not None:  # read() takes as much memory as it is told, whatever there is
                end = min(end, os.fstat(lines.fileno()).st_size) - begin
            gained = lines.read(end)
        digest.update(gained)
        self._sizes[name] = begin + len(gained)

    def _of(self, name: str) -> str:
        """The digest of a file that grows, as far as it was read; empty if there is none."""
        return self._hashes[name].hexdigest() if name in self._hashes else ""

    def _cut_back(self) -> None:
        for name in CUT:
            file = self.path / name
            with readable_errors(file):
                if file.exists():
                    os.truncate(file, self._sizes.get(name, 0))

    def _personal(self, round_: int) -> str:
        """Which personal entries the server had after a round, and how large they are.

        There may be thousands of clients, of whom few took part: a client's folder is only looked
        into if something was written there since the last time.
        """
        newest = []
        for folder in os.scandir(self.path / PERSONAL) if (self.path / PERSONAL).is_dir() else ():
            written = folder.stat().st_mtime_ns
            if self._clients.get(folder.name, (0, {}))[0] != written:
                files = Path(folder.path).glob("*.safetensors")
                sizes = {int(file.stem): file.stat().st_size for file in files}
                self._clients[folder.name] = written, sizes
            sizes = self._clients[folder.name][1]
            if rounds := [t for t in sizes if t <= round_]:
                newest.append(f"{folder.name}/{max(rounds)} {sizes[max(rounds)]}")
        return _listed(newest)

    def _model(self, kept: str) -> str:
        """The files of a round's model, and how large they are; once kept, they stay so."""
        folder = self.path / KEPT / kept
        if not folder.is_dir():
            return ""
        made = folder.stat().st_mtime_ns
        if self._models.get(kept, (0, ""))[0] != made:
            files = folder.rglob("*.safetensors")
            lines = (f"{file.relative_to(folder)} {file.stat().st_size}" for file in files)
            self._models[kept] = made, _listed(lines)
        return self._models[kept][1]

    def _changed(self, name: str, round_: int) -> RunError:
        return RunError(
            f"{self.path / name} is not what it was when round {round_} was finished: it was "
            "changed, cut or deleted; restore it, or delete the run and repeat it"
        )


def _listed(lines: Iterable[str]) -> str:
    """The digest of some lines, whatever their order; empty if there are none."""
    text = "\n".join(sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _digest(file: Path) -> str:
    """The digest of a file; empty if there is none."""
    with readable_errors(file):
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
