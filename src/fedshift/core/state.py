"""Client state over rounds: versioned by round, so a lost round loses nothing else."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Protocol

from fedshift.base import tree
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.base.tree import Tree

State = defaultdict[str, Tree]  # "part" (or "net", "previous", ...) -> tensors


class StateStore(Protocol):
    """Where client state lives between visits.

    A state is saved under the round that made it. Whoever resumes after round t asks for the
    newest state before t + 1; what an unfinished round t + 1 has left is never seen.
    """

    def load(self, client: str, *, before: int) -> State:
        """The newest state of a round earlier than ``before``; empty if there is none."""
        ...

    def save(self, client: str, round_: int, state: dict[str, Tree]) -> None:
        """Keep ``state``, and the one before it in case this round is lost."""
        ...


class MemoryStore:
    """For runs without a directory; tensors are held as they are given."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, dict[str, Tree]]] = defaultdict(dict)

    def load(self, client: str, *, before: int) -> State:
        """See :class:`StateStore`."""
        found = [r for r in self._versions[client] if r < before]
        state = self._versions[client][max(found)] if found else {}
        return defaultdict(dict, {name: dict(entries) for name, entries in state.items()})

    def save(self, client: str, round_: int, state: dict[str, Tree]) -> None:
        """See :class:`StateStore`."""
        versions = self._versions[client]
        for old in sorted(r for r in versions if r < round_)[:-1]:
            del versions[old]
        versions[round_] = state


class DiskStore:
    """One file per client and kept round; read when the client is visited."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _versions(self, client: str) -> dict[int, Path]:
        folder = self.folder / client
        if not folder.is_dir():
            return {}
        return {int(p.stem): p for p in folder.glob("*.safetensors")}

    def load(self, client: str, *, before: int) -> State:
        """See :class:`StateStore`."""
        versions = self._versions(client)
        found = [r for r in versions if r < before]
        state: State = defaultdict(dict)
        if found:
            for key, value in read_tensors(versions[max(found)])[0].items():
                name, _, entry = key.partition("/")
                state[name][entry] = value
        return state

    def save(self, client: str, round_: int, state: dict[str, Tree]) -> None:
        """See :class:`StateStore`."""
        versions = self._versions(client)
        if not state and not versions:
            return  # most methods keep nothing: no file either
        flat = tree.merge(tree.prefixed(name, entries) for name, entries in state.items())
        write_tensors(self.folder / client / f"{round_}.safetensors", flat)
        for old in sorted(r for r in versions if r < round_)[:-1]:
            versions[old].unlink()
