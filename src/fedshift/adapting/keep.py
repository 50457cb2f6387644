"""Write a changed model as a directory that is read like a run, and say what it comes from.

``adapt`` and ``finetune`` call :func:`write_model`; ``experiment.models`` reads what it wrote, so
``predict``, ``export``, ``card`` and ``serve`` take it. The layout::

    config.json, preparation.json       of the run; with what prepares the new site's data
    best/model.json, best/ROUND/...     all entries of the net, in one file
    adapted.json                        where it comes from, with what, on how many samples
    source/                             what a model card needs of the run: scores, ledger, roster

It must never hold a sample, a label or a prediction of anybody, and never change a run.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.files import read_json, readable_errors, write_json
from fedshift.base.tensor_files import write_tensors
from fedshift.base.version import __version__
from fedshift.core.net import Net
from fedshift.experiment.models import Model
from fedshift.experiment.raw import RawInputs
from fedshift.runs import best

FORMAT = 1
SOURCE = "source"
KEPT = ("config.json", "summary.json", "metrics.jsonl", "ledger.jsonl", "privacy.jsonl",
        "experiment.toml", "checkpoints/roster.json")  # fmt: skip


def digest(net: Net) -> str:
    """SHA-256 of all entries of a net."""
    return hashlib.sha256(tree.to_bytes(tree.contiguous(net.state_dict()))).hexdigest()


def write_model(
    run: Path, out: Path, model: Model, inputs: RawInputs, step: Mapping[str, Any]
) -> None:
    """Write ``model`` to the new folder ``out``; ``step`` says what was done to the run's."""
    require_free(out)
    with readable_errors(out):
        (out / SOURCE).mkdir(parents=True)
        shutil.copyfile(run / "config.json", out / "config.json")
        _keep_source(run, out / SOURCE)
    best.keep_preparation(out, inputs.to_json())
    folder = out / best.FOLDER / str(model.round)
    meta = {"round": model.round}
    write_tensors(folder / "shared.safetensors", tree.contiguous(model.net.state_dict()), meta)
    if model.inbox:
        write_tensors(folder / "scoring.safetensors", model.inbox, meta)
    before = read_json(run / best.STORY)["steps"] if (run / best.STORY).exists() else []
    done = {**step, "sha256": digest(model.net)}
    story = {"format": FORMAT, "version": __version__, "site": model.site}
    write_json(out / best.STORY, story | {"steps": [*before, done]})
    write_json(out / best.FOLDER / "model.json", {
        "shape": list(model.net.shape), "classes": list(model.classes), "round": model.round,
        "sites": [model.site], best.ADAPTED: model.site, "skipped": sorted(model.net.skipped),
    })  # fmt: skip


def require_free(out: Path) -> None:
    """Raise if something is there already: nothing is overwritten."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RunError(f"{out} exists already; delete it, or write to another folder", "out=DIR")


def _keep_source(run: Path, target: Path) -> None:
    """Copy what a card needs; of a model that was adapted before, what it had copied."""
    source = run / SOURCE if (run / best.STORY).exists() else run
    for name in KEPT:
        if (source / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)
