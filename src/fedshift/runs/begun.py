"""How the run in a directory was begun, for whoever continues it."""

from __future__ import annotations

from pathlib import Path

from fedshift.base.errors import RunError
from fedshift.base.files import read_json
from fedshift.engine.compute import Compute


def read_compute(path: Path | None) -> Compute | None:
    """The compute settings with which the run in ``path`` began; None if there is no run."""
    file = path / "config.json" if path else None
    if file is None or not file.exists():
        return None
    try:
        held = read_json(file).get("compute")
        return Compute(**held) if held else None
    except (TypeError, AttributeError) as error:
        raise RunError(
            f"{file} is damaged: its compute settings cannot be read ({error})"
        ) from None
