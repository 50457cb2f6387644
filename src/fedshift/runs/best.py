"""The complete model of the selected rounds: what the server shares, and what each site keeps.

``runs.record`` calls it while a run goes on, ``experiment.models`` reads what it wrote. Client
states and personal entries are in files of their own, one per client and round (``core.state``),
which are only ever replaced and never edited; so keeping those of a round means a hard link to
each, whatever their size. The layout::

    preparation.json                         how raw data become inputs, to be replayed
    best/model.json                          shape of an input, names of the classes
    best/ROUND/shared.safetensors            shared entries after that round
    best/ROUND/scoring.safetensors           what parts predict with besides, if anything
    best/ROUND/personal/CLIENT.safetensors   personal entries, which the server holds
    best/ROUND/clients/CLIENT.safetensors    the client's state: private entries, parts' state

A round is kept before its commit, in a folder of its own, and the folders of rounds that are no
longer selected go after the commit. So a process that is killed in between leaves the model of the
last finished rounds untouched, and resuming removes what an unfinished round has left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedshift.base.files import readable_errors, write_json
from fedshift.base.tensor_files import write_tensors

FOLDER = "best"
STORES = ("clients", "personal")
PREPARATION = "preparation.json"
ADAPTED = "adapted_to"  # in ``model.json`` of a directory that ``adapting`` wrote: which site
STORY = "adapted.json"  # in such a directory: from what and how the model was made


def keep_preparation(path: Path, found: Mapping[str, Any]) -> None:
    """Write how raw data became the inputs of a run, for predictions (``experiment.raw``)."""
    write_json(path / PREPARATION, found)


def keep_round(
    path: Path, round_: int, shared: Mapping[str, Any], scoring: Mapping[str, Any]
) -> None:
    """Keep the model of a round in the run directory ``path``; an earlier attempt is replaced.

    ``scoring`` is what parts need to predict besides the entries, such as prototypes.
    """
    folder = path / FOLDER / str(round_)
    with readable_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        write_tensors(folder / "shared.safetensors", dict(shared), {"round": round_})
        if scoring:
            write_tensors(folder / "scoring.safetensors", dict(scoring), {"round": round_})
        for store in STORES:
            if (path / "checkpoints" / store).is_dir():
                link_newest(path / "checkpoints" / store, folder / store, round_)


def link_newest(store: Path, target: Path, round_: int) -> None:
    """Link each client's newest file that is not from a round later than ``round_``."""
    target.mkdir(parents=True)
    for client in [one for one in store.iterdir() if one.is_dir()] if store.is_dir() else []:
        rounds = [int(f.stem) for f in client.glob("*.safetensors") if int(f.stem) <= round_]
        if rounds:
            link(client / f"{max(rounds)}.safetensors", target / f"{client.name}.safetensors")


def link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def settle(path: Path, selected: Collection[int], first: int | None) -> None:
    """Remove the rounds that are not ``selected``, and let best.safetensors be that of ``first``.

    Call it once the choice is on disk; what it removes cannot be brought back.
    """
    folder = path / FOLDER
    if not folder.is_dir():
        return
    with readable_errors(folder):
        shown = folder / str(first) / "shared.safetensors"
        if shown.exists():
            beside = path / ".best.safetensors.part"
            beside.unlink(missing_ok=True)
            link(shown, beside)
            beside.replace(path / "best.safetensors")
        for kept in folder.iterdir():
            if kept.is_dir() and int(kept.name) not in selected:
                shutil.rmtree(kept)
