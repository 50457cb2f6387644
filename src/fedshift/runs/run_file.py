"""A run as one file to repeat: ``fedshift run experiment.toml``.

Every run directory holds one, complete; people write short ones by hand. What a file leaves out has
the usual default, and ``scenario`` is a name, a table of changes to a named scenario, or a complete
table::

    method = "fedprox"
    seed = 1
    settings = { mu = 0.1 }

    [scenario]
    name = "digits"
    rounds = 20

Reading never runs anything; ``experiment.run`` makes a configuration of what was read.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from fedshift.base.errors import ConfigError
from fedshift.base.files import write_bytes
from fedshift.core.config import RunConfig
from fedshift.core.scenario import Frozen, one_line
from fedshift.engine.compute import Compute

NAME = "experiment.toml"
HEAD = "# The run in this folder; `fedshift run {name}` plays it again, elsewhere.\n"
OBJECT = (
    "# Its method came as a Python object and must be given again from Python; what is here is\n"
    "# everything else.\n"
)


class RunFile(Frozen):
    """What a run file may say."""

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    without: tuple[str, ...] = ()
    seed: int = 0
    scenario: str | dict[str, Any] = "digits"
    scale: str | None = None
    allow: tuple[str, ...] = ()
    compute: Compute = Field(default_factory=Compute)
    replayable: bool = True  # False: the method was a Python object


def write_run_file(folder: Path, config: RunConfig, compute: Compute) -> None:
    """Write ``experiment.toml`` into a run directory."""
    scenario = config.scenario.model_dump(mode="json", exclude_none=True)
    values: dict[str, Any] = {
        "method": config.method,
        "seed": config.seed,
        "without": list(config.without),
        "settings": {k: "none" if v is None else _plain(v) for k, v in config.settings.items()},
        "compute": compute.describe(),
        "scenario": scenario,
    }
    head = HEAD.format(name=NAME)
    if not config.replayable:
        head, values = head + OBJECT, {"replayable": False} | values
    write_bytes(folder / NAME, (head + "\n" + tomli_w.dumps(values)).encode())


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def read_run_file(path: Path) -> RunFile:
    """A run file, or that of a run directory; what is wrong in it is told in one line."""
    file = path / NAME if path.is_dir() else path
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}; mend that line") from None
    try:
        return RunFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{file}: {one_line(error)}") from None
