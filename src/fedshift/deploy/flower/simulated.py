"""What a Flower app needs to simulate a scenario of fedshift: see ``examples/flower_app``.

The app's ServerApp is made of :func:`play_settings`, its ClientApp of :func:`simulated_worker` and
:func:`simulated_client`. All data are those of the run's scenario, so this must never be used at a
site with data of its own (``deploy.flower.apps`` is for that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.base.logs import to_streams
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.core.server import Transport
from fedshift.engine.build import Plan
from fedshift.engine.federation import federate_for
from fedshift.engine.visit import Worker
from fedshift.experiment.identity import configure_run
from fedshift.experiment.listener import LogListener
from fedshift.experiment.run import execute
from fedshift.experiment.scenario import require_clear, scenario_from, split_settings
from fedshift.experiment.session import Options
from fedshift.report.results import RunResult
from fedshift.runs.record import client_store
from fedshift.transports.flower.site import NodeConfig

KEYS = ("method", "scenario", "scale", "rounds", "clients-per-round", "seed", "set", "allow", "out")


def configured(settings: Mapping[str, Any]) -> tuple[RunConfig, Method]:
    """A run from the flat settings of a Flower app; an empty string or 0 means the default.

    ``set`` and ``allow`` take several values, separated by blanks:
    ``set = "mu=0.1 scenario.lr=0.2"``.
    """
    if odd := sorted(settings.keys() - set(KEYS)):
        raise ConfigError(f"the run has a setting {odd[0]!r}; known: {', '.join(KEYS)}")
    given = {key: value for key, value in settings.items() if value}
    if "method" not in given:
        raise ConfigError("the run names no method; add -c 'method=\"fedavg\"'")
    own, changes = split_settings(
        str(given.get("set", "")).split(),
        rounds=given.get("rounds"),
        clients_per_round=given.get("clients-per-round"),
    )
    require_clear(given["method"], own)
    allow = str(given.get("allow", "")).split()
    scenario = scenario_from(given.get("scenario", "digits"), given.get("scale"), allow, changes)
    return configure_run(given["method"], scenario, seed=int(settings.get("seed", 0)), settings=own)


def folder(run: RunConfig, settings: Mapping[str, Any]) -> Path:
    """Folder of the run directory and of the simulated sites' state: ``out``, or runs/NAME."""
    return Path(settings.get("out") or Path("runs") / run.name)


def play_settings(connect: Callable[[Plan], Transport], settings: Mapping[str, Any]) -> RunResult:
    """Carry out the run that ``settings`` describe, from its last finished round on."""
    to_streams()
    config, method = configured(settings)
    options = Options(resume=True, transport=connect, listener=LogListener())
    return execute(config, method, folder(config, settings), options)


def simulated_worker(run: RunConfig, node: NodeConfig) -> Worker:
    """A simulated site's worker: data of the run's scenario, state in the run directory."""
    return _simulated(run.model_dump_json(), folder(run, node))


@lru_cache(maxsize=1)  # an actor runs many visits of one run
def _simulated(run: str, path: Path) -> Worker:
    config = RunConfig.model_validate_json(run)
    method = config.build()
    federation = federate_for(method, config.scenario, config.seed)
    return Plan(config, method, federation, client_store(path)).worker()


def simulated_client(run: RunConfig, node: NodeConfig) -> str:
    """A simulated site's client: the one at the position of Flower's ``partition-id``."""
    clients = _clients(run.model_dump_json())
    number = int(node["partition-id"])
    if int(node["num-partitions"]) != len(clients):
        raise ConfigError(
            f"the simulation has {node['num-partitions']} nodes, the scenario {len(clients)} "
            f'clients; add --federation-config "num-supernodes={len(clients)}"'
        )
    return clients[number]


@lru_cache(maxsize=1)
def _clients(run: str) -> tuple[str, ...]:
    config = RunConfig.model_validate_json(run)
    return tuple(federate_for(config.build(), config.scenario, config.seed).sites)
