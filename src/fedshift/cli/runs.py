"""What ``fedshift run`` does with its options and its file: one configuration, with its method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError, RunError
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.experiment.identity import configure_run
from fedshift.experiment.run import method_of, scenario_of
from fedshift.experiment.scenario import require_clear, scenario_from, split_settings
from fedshift.runs.record import read_config
from fedshift.runs.run_file import RunFile, read_run_file


def read_file(path: Path | None) -> RunFile | None:
    """The run file that was named, if there is one."""
    if path is None:
        return None
    if not path.exists():
        raise ConfigError(f"{path} is not a run file; for a method write --method {path}")
    return read_run_file(path)


def require_run(path: Path) -> None:
    """Raise if there is no run in ``path`` to continue."""
    if not (path / "config.json").exists():
        raise RunError(f"{path} holds no run to continue; leave out --resume to start one there")


def begun(path: Path) -> tuple[RunConfig, Method]:
    """The run that was begun in ``path``."""
    require_run(path)
    config = read_config(path)
    return config, config.build()


def configured(
    file: RunFile | None,
    *,
    method: str | None,
    scenario: str | None,
    scale: str | None,
    allow: Sequence[str],
    seed: int | None,
    settings: list[str] | None,
    without: Sequence[str],
    **changes: str | float | None,
) -> tuple[RunConfig, Method]:
    """The run of a command line; what an option leaves open is the file's, or the default.

    A method given as an option replaces the file's with its settings.
    """
    own: dict[str, Any]
    own, changed = split_settings(settings, **changes)
    if method is None and file is None:
        raise ConfigError("no --method is given; `fedshift list methods` shows what there is")
    typed = own
    if method is None and file is not None:
        method = method_of(file, "the run file")
        own = file.settings | own
        without = (*file.without, *without)
    require_clear(str(method), typed)
    base = scenario or (scenario_of(file) if file is not None else "digits")
    if seed is None:
        seed = file.seed if file is not None else 0
    return configure_run(
        str(method),
        scenario_from(base, scale, list(allow), changed),
        seed=seed,
        settings=own,
        without=tuple(without),
    )
