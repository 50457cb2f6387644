"""What a run is, data included: its configuration with the fingerprint of its data.

``run``, ``compare``, the command line and simulated Flower apps configure their runs here, since
they have the data at hand; deployments, whose data are at the sites, use ``core.config`` and have
no fingerprint. Worker processes and sites get the fingerprint with the configuration and must never
compute their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedshift.base.errors import DataError, RunError
from fedshift.core.config import RunConfig, configure
from fedshift.core.method import Method
from fedshift.core.scenario import Scenario
from fedshift.engine.federation import data_fingerprint
from fedshift.runs.record import read_config


def configure_run(
    method: str | Method, scenario: Scenario, *, data: str | None = None, **options: Any
) -> tuple[RunConfig, Method]:
    """A run's configuration with the fingerprint of its data, and its method.

    ``data`` is the fingerprint if it is known already: of many runs on the same data, all bytes
    need to be read once.
    """
    config, whole = configure(method, scenario, **options)
    found = data_fingerprint(scenario) if data is None else data
    return config.model_copy(update={"data": found}), whole


def same_run(held: RunConfig, wanted: RunConfig) -> bool:
    """Whether a run on disk is the wanted one; runs from before fingerprints are not told apart."""
    if not held.data or not wanted.data:
        return same_but_data(held, wanted)
    return held.fingerprint == wanted.fingerprint


def same_but_data(held: RunConfig, wanted: RunConfig) -> bool:
    """Whether two runs differ in nothing but their data."""
    held, wanted = (c.model_copy(update={"data": ""}) for c in (held, wanted))
    return held.fingerprint == wanted.fingerprint


def require_same_data(config: RunConfig) -> None:
    """Raise if the data are no longer those that the run was configured with."""
    if config.data and (now := data_fingerprint(config.scenario)) != config.data:
        raise DataError(
            f"the data of {config.scenario.data!r} have changed: run {config.name} is of "
            f"{config.data}, and they are {now} now; start a new run, or add the old data again"
        )


def of_older_data(out: Path, current: Iterable[RunConfig]) -> list[str]:
    """One line per dataset: the runs in ``out`` that were made with other data than ``current``.

    A run counts if method, scenario and seed are those of a current one and only the data differ.
    """
    known = {c.model_copy(update={"data": ""}).fingerprint: c for c in current}
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted(out.glob("*/config.json")):
        try:
            held = read_config(file.parent)
        except RunError:
            continue
        now = known.get(held.model_copy(update={"data": ""}).fingerprint)
        if now is not None and now.data and held.data != now.data:
            found.setdefault((held.scenario.data, held.data), []).append(file.parent.name)
    data = {c.scenario.data: c.data for c in known.values()}
    return [
        f"{dataset}: {len(names)} runs in {out} are of older data "
        f"({old or 'without a fingerprint'}; now {data[dataset]}) and not in this table: "
        + ", ".join(names)
        for (dataset, old), names in found.items()
    ]
