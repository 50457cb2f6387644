"""What whoever runs an exported model must know: shape, classes, task, how raw data become inputs.

``export`` writes it into the exported file and, filled in, into the ``prepare.py`` beside it;
``service`` reads it back from an ONNX file. Plain JSON; it holds no sample.
"""

from __future__ import annotations

import json
import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.base.files import write_bytes
from fedshift.data.sources.tables.replay import preparation_of
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.experiment.models import Model
from fedshift.serve import standalone

FILE = "prepare.py"
KEY = "fedshift"  # of the metadata of exported files
BLANK = 'json.loads("{}")'


def about_of(model: Model, name: str, kind: str) -> dict[str, Any]:
    """Everything about a model; ``name`` and ``kind`` are those of the exported file."""
    task = model.config.scenario.task
    assert model.inputs is not None
    out: dict[str, Any] = {
        "model": name,
        "format": kind,
        "method": model.config.label,
        "round": model.round,
        "site": model.site,
        "task": task.name,
        "shape": list(model.net.shape),
        "classes": list(model.classes),
    }
    if len(model.net.shape) == 3:
        return out | {"pixels": model.config.scenario.pixels}
    if model.inputs.table is None:
        return out
    site = model.site and model.inputs.domains.get(model.site, model.site)
    return out | {"site": site} | table_of(model.inputs.table)


def table_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """How the cells of a table become numbers, from the run's ``preparation.json``."""
    schema = TableSchema.model_validate(record["schema"])
    names = ["all"] if record["statistics"] == "federated" else list(record["sites"])
    plans = {name: preparation_of(record, name).to_json()["plans"] for name in names}
    numbers = [v for v in map(_number, schema.missing) if v is not None]
    return {
        "plans": plans,
        "absent": sorted(schema.absent),
        "missing": numbers,
        "delimiter": schema.delimiter,
        "decimal": schema.decimal,
        "encoding": schema.encoding,
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def cannot_prepare(about: Mapping[str, Any]) -> str | None:
    """Why no ``prepare.py`` can be written, or None."""
    if len(about["shape"]) == 3:
        return None
    if "plans" not in about:
        return "the run was trained on vectors, not on a table"
    kinds = [
        p["encoder"] for plans in about["plans"].values() for p in plans if p["kind"] == "text"
    ]
    if others := sorted(set(kinds) - {"words"}):
        return f"texts are encoded with {others[0]}, which takes more than a small file"
    return None


def require_free(folder: Path, name: str) -> None:
    """Raise if the folder's ``prepare.py`` belongs to another model, which would be lost."""
    path = folder / FILE
    if path.exists() and path.read_text(errors="replace").partition("\n")[0] != _head(name):
        raise ConfigError(
            f"{path} belongs to another model; export into a folder of its own", "out=FOLDER/FILE"
        )


def write_prepare(folder: Path, about: Mapping[str, Any]) -> Path:
    """Write ``prepare.py`` for a model into its folder."""
    source = Path(standalone.__file__).read_text()
    literal = pprint.pformat(json.dumps(about), width=96)  # of any text, on several lines
    kept = [line for line in source.splitlines() if not line.startswith(("# ``fedshift", "# here"))]
    text = "\n".join([_head(about["model"]), *kept]).replace(BLANK, f"json.loads({literal})", 1)
    write_bytes(folder / FILE, f"{text}\n".encode())
    return folder / FILE


def _head(name: str) -> str:
    return f"# Written by fedshift export for {json.dumps(name)}."
