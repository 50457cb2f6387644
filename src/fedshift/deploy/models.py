"""The complete model of the selected round at a deployed site.

Private entries never leave a site, so only the site can have its whole model. While a run goes on,
each request says which rounds are selected so far, and the site keeps its state of those beside the
last two (``keep_states``); at the end the server sends the shared and personal entries of the
selected round (``hand_over``), which the site writes beside them (``keep_model``) as a small run
directory that ``load_model`` and ``fedshift predict`` open::

    SITE/models/RUN/config.json, preparation.json
    SITE/models/RUN/best/model.json, best/ROUND/...      as in a run directory, of this site alone

Nothing of it is ever sent anywhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedshift.base import tree
from fedshift.base.errors import FedshiftError, RunError
from fedshift.base.files import write_json
from fedshift.base.logs import log
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.base.tree import Tree
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast
from fedshift.data.federation import Federation
from fedshift.deploy.folders import SitePaths
from fedshift.engine.compute import Compute
from fedshift.runs import best
from fedshift.runs.record import config_json


def keep_states(paths: SitePaths, run: str, rounds: Collection[int]) -> None:
    """Keep this site's state as of the selected rounds, and forget that of rounds no longer so."""
    states, kept = paths.states / run, paths.models / run / best.FOLDER
    for round_ in rounds:
        if not (kept / str(round_) / "clients").is_dir():
            best.link_newest(states, kept / str(round_) / "clients", round_)
    for folder in kept.iterdir() if kept.is_dir() else ():
        if folder.is_dir() and int(folder.name) not in rounds:
            shutil.rmtree(folder)


def forget(paths: SitePaths, run: str) -> None:
    """Delete what an earlier attempt at a run has kept."""
    shutil.rmtree(paths.models / run, ignore_errors=True)


def keep_model(
    paths: SitePaths,
    run: RunConfig,
    own: Federation,
    message: Broadcast,
    prepared: Mapping[str, Any],
) -> None:
    """Write the model of a round, of which the server sends all but what this site has kept."""
    folder, round_ = paths.models / run.name, message.round
    keep_states(paths, run.name, [round_])
    target = folder / best.FOLDER / str(round_)
    write_tensors(target / "shared.safetensors", dict(message.shared), {"round": round_})
    if message.payload:
        write_tensors(target / "scoring.safetensors", dict(message.payload), {"round": round_})
    personal = tree.prefixed("net", message.personal)
    write_tensors(target / "personal" / f"{message.client}.safetensors", personal)
    best.keep_preparation(folder, prepared)
    about = {"shape": list(own.shape), "classes": list(own.classes)}
    about |= {"round": round_, "sites": [message.client]}
    write_json(folder / best.FOLDER / "model.json", about)
    write_json(folder / "config.json", config_json(run, Compute()), durable=True)


def final_messages(path: Path, round_: int, sites: Collection[str]) -> dict[str, Broadcast]:
    """What each site needs of the server to have the complete model of a round."""
    folder = path / best.FOLDER / str(round_)
    shared = read_tensors(folder / "shared.safetensors")[0]
    scoring = _read(folder / "scoring.safetensors")
    return {
        site: Broadcast(
            site,
            "score",
            round_,
            shared,
            tree.under("net", _read(folder / "personal" / f"{site}.safetensors")),
            scoring,
        )
        for site in sorted(sites)
    }


def _read(file: Path) -> Tree:
    return read_tensors(file)[0] if file.exists() else {}


def tell_missed(missed: Mapping[str, FedshiftError | str]) -> None:
    """Say which sites have not got the selected model; the run itself is done."""
    for site, reason in sorted(missed.items()):
        log.warning("site %s has not got the selected model: %s", site, reason)


def only_message(messages: Collection[Broadcast], client: str) -> Broadcast:
    """The one message of a final request; raises if it is for another site."""
    if [m.client for m in messages] != [client]:
        raise RunError(f"a model for another site reached {client}; start the run anew")
    return next(iter(messages))
