"""A run as one TOML file that can be repeated with ``fedshift run experiment.toml``.

Every run directory contains a complete one; people write short ones by hand. A setting that is left
out has its usual default, and ``scenario`` is a name, a table of changes to a named scenario, or a
complete table::

    method = "fedprox"
    seed = 1
    settings = { mu = 0.1 }

    [scenario]
    name = "digits"
    rounds = 20

``runs.record`` writes the file, ``experiment.run`` turns what was read into a configuration.
Reading must never run anything.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from fedshift.base.errors import ConfigError
from fedshift.base.files import from_toml, write_bytes
from fedshift.core.config import RunConfig
from fedshift.core.scenario import Frozen, one_line
from fedshift.engine.compute import Compute

NAME = "experiment.toml"
HEAD = "# The run in this folder; `fedshift run {name}` repeats it in another folder.\n"
OBJECT = (
    "# Its method came as a Python object and must be given again from Python; what is here is\n"
    "# everything else.\n"
)


class RunFile(Frozen):
    """The settings that a run file may contain; an unknown one is an error."""

    method: str
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    without: tuple[str, ...] = ()
    seed: int = 0
    scenario: str | dict[str, Any] = "digits"
    scale: str | None = None
    allow: tuple[str, ...] = ()
    compute: Compute = Field(default_factory=Compute)
    replayable: bool = True  # False: the method was a Python object


def write_run_file(folder: Path, config: RunConfig, compute: Compute, name: str = NAME) -> None:
    """Write ``experiment.toml`` into a run directory, or a file of another name anywhere."""
    write_bytes(folder / name, run_file_text(config, compute, name).encode())


def run_file_text(config: RunConfig, compute: Compute, name: str = NAME) -> str:
    """A complete run file; ``name`` is what its first line calls it."""
    scenario = config.scenario.model_dump(mode="json", exclude_none=True)
    values: dict[str, Any] = {
        "method": config.method,
        "seed": config.seed,
        "without": list(config.without),
        "settings": {k: "none" if v is None else _plain(v) for k, v in config.settings.items()},
        "compute": compute.describe(),
        "scenario": scenario,
    }
    head = HEAD.format(name=name)
    if not config.replayable:
        head, values = head + OBJECT, {"replayable": False} | values
    return head + "\n" + tomli_w.dumps(values)


def _plain(value: Any) -> Any:
    """A value that TOML can store; anything else as text."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def read_run_file(path: Path) -> RunFile:
    """Read a run file, or the one in a run directory; an error is reported in one line."""
    file = path / NAME if path.is_dir() else path
    try:
        values = from_toml(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}; mend that line") from None
    try:
        return RunFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{file}: {one_line(error)}") from None
