"""The two halves of a Flower app: ready to be named in its pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError
from fedshift.core.config import RunConfig, configure
from fedshift.core.method import Method
from fedshift.core.server import Transport
from fedshift.engine.build import Plan
from fedshift.engine.federation import federate
from fedshift.engine.visit import Worker
from fedshift.experiment.listener import Listener
from fedshift.experiment.run import execute
from fedshift.experiment.scenario import placed, split_settings
from fedshift.experiment.session import Options
from fedshift.report.results import RunResult
from fedshift.runs.record import Row, client_store
from fedshift.transports.flower.site import Node

KEYS = ("method", "scenario", "scale", "rounds", "clients-per-round", "seed", "set", "grant", "out")


def configured(settings: Mapping[str, Any]) -> tuple[RunConfig, Method]:
    """A run from the flat settings of a Flower app; empty text and 0 leave a value alone.

    ``set`` and ``grant`` hold several values apart by blanks: ``set = "mu=0.1 scenario.lr=0.2"``.
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
    grants = str(given.get("grant", "")).split()
    scenario = placed(given.get("scenario", "digits"), given.get("scale"), grants, changes)
    return configure(given["method"], scenario, seed=int(settings.get("seed", 0)), settings=own)


def folder(run: RunConfig, settings: Mapping[str, Any]) -> Path:
    """Where the server keeps the run, and simulated sites their state: ``out``, or runs/NAME."""
    return Path(settings.get("out") or Path("runs") / run.name)


class Lines(Listener):
    """One line per round, for Flower's log."""

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """See :class:`Listener`."""
        self.rounds = config.scenario.rounds
        tell(f"{config.label} in {config.place}: {clients} clients, from round {first_round}")

    def round_done(self, row: Row) -> None:
        """See :class:`Listener`."""
        losses = [f"{name} {value:.4f}" for name, value in row["losses"].items()]
        scores = [f"{name} {v['test']['avg']:.2f}" for name, v in row.get("scores", {}).items()]
        tell(f"round {row['round']} of {self.rounds}: {', '.join(losses + scores)}")


def tell(line: str) -> None:
    """Into Flower's log."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def play_settings(connect: Callable[[Plan], Transport], settings: Mapping[str, Any]) -> RunResult:
    """Play the run that ``settings`` describe, on from its last finished round."""
    config, method = configured(settings)
    options = Options(resume=True, transport=connect, listener=Lines())
    return execute(config, method, folder(config, settings), options)


def simulated_worker(run: RunConfig, node: Node) -> Worker:
    """For a simulated site: the run's own scenario, state in the run's directory."""
    return _simulated(run.model_dump_json(), folder(run, node))


@lru_cache(maxsize=1)  # an actor plays many visits of one run
def _simulated(run: str, path: Path) -> Worker:
    config = RunConfig.model_validate_json(run)
    federation = federate(config.scenario, config.seed)
    return Plan(config, config.build(), federation, client_store(path)).worker()


def simulated_client(run: RunConfig, node: Node) -> str:
    """For a simulated site: the client at the place that Flower's ``partition-id`` names."""
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
    return tuple(federate(config.scenario, config.seed).sites)
