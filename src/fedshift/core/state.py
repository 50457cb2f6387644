"""Client state between visits, versioned by round so that a repeated round starts from the same.

Workers load and save through a :class:`StateStore`: private entries, parts' state and kept
optimiser state. The server uses a second store for personal entries. Client state never leaves the
site, and a store must never return what an unfinished round has written.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Protocol

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.base.tree import Tree

State = defaultdict[str, Tree]  # part's name, or "net", "previous", ... -> its entries


class StateStore(Protocol):
    """Where client state is kept between visits.

    A state is saved under the round that made it. A training visit of round t asks for the newest
    state before t; evaluation after round t asks for the newest before t + 1. Suppose the process
    dies in round t + 1 when half of the clients have already saved. The resumed run repeats that
    round, asks for states before t + 1 and so finds every client as round t left it; what the dead
    process had saved is ignored and then overwritten. For this the previous version must be kept
    until the round is over, so each client has two versions at most, plus any that a crash left.
    Clients are not visited in every round: "newest before" finds the last visit, however long ago.
    """

    def load(self, client: str, *, before: int) -> State:
        """The newest state of a round earlier than ``before``; empty if there is none."""
        ...

    def newest(self, client: str, *, before: int) -> int:
        """The round of that state; -1 if there is none."""
        ...

    def save(self, client: str, round_: int, state: dict[str, Tree]) -> None:
        """Store ``state`` for ``round_``, and keep the version before it for a repeated round."""
        ...


class MemoryStore:
    """In memory, for runs without a directory; tensors are not copied."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, dict[str, Tree]]] = defaultdict(dict)

    def newest(self, client: str, *, before: int) -> int:
        """See :class:`StateStore`."""
        return max((r for r in self._versions[client] if r < before), default=-1)

    def load(self, client: str, *, before: int) -> State:
        """See :class:`StateStore`."""
        found = [r for r in self._versions[client] if r < before]
        state = self._versions[client][max(found)] if found else {}
        return defaultdict(dict, {name: dict(entries) for name, entries in state.items()})

    def save(self, client: str, round_: int, state: dict[str, Tree]) -> None:
        """See :class:`StateStore`."""
        versions = self._versions[client]
        if not state and not versions:
            return  # as on disk: most methods keep no state
        for old in sorted(r for r in versions if r < round_)[:-1]:
            del versions[old]
        versions[round_] = state


class DiskStore:
    """One file per client and version, read when the client is visited, not before.

    A save does not wait for the disk, which would cost every visit some milliseconds. A simulated
    run needs no more: the checkpoint that makes a round count is written after all else has reached
    the disk (``write_bytes(durable=True)``). If the power fails earlier, the checkpoint of the
    round before is in force, and that reads the version before, which reached the disk with it and
    is deleted only by the round after.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _versions(self, client: str) -> dict[int, Path]:
        folder = self.folder / client
        if not folder.is_dir():
            return {}
        return {int(p.stem): p for p in folder.glob("*.safetensors")}

    def newest(self, client: str, *, before: int) -> int:
        """See :class:`StateStore`."""
        return max((r for r in self._versions(client) if r < before), default=-1)

    def load(self, client: str, *, before: int) -> State:
        """See :class:`StateStore`."""
        versions = self._versions(client)
        found = [r for r in versions if r < before]
        state: State = defaultdict(dict)
        if found:
            file = versions[max(found)]
            entries, meta = read_tensors(file)
            if meta.get("round", max(found)) != max(found):
                raise RunError(
                    f"{file} holds the state of round {meta['round']}; restore the one of round "
                    f"{max(found)}, or delete the run and repeat it"
                )
            for key, value in entries.items():
                name, _, entry = key.partition("/")
                state[name][entry] = value
        return state

    def save(self, client: str, round_: int, state: dict[str, Tree]) -> None:
        """See :class:`StateStore`."""
        versions = self._versions(client)
        if not state and not versions:
            return  # most methods keep no state and need no file
        flat = tree.merge(tree.prefixed(name, entries) for name, entries in state.items())
        write_tensors(self.folder / client / f"{round_}.safetensors", flat, {"round": round_})
        for old in sorted(r for r in versions if r < round_)[:-1]:
            versions[old].unlink()
