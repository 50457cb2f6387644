"""What a run takes in all, from a few rounds of it: time, bytes, memory and disk.

``experiment.estimate`` asks before a run, after a warm-up, and ``experiment.session`` after the
first scored round of every run, for its listener to tell. It is a guess on this machine as busy as
it is now, never a promise.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from typing import Any

from fedshift.base import tree
from fedshift.core.config import RunConfig
from fedshift.core.scenario import Scenario
from fedshift.core.server import Server
from fedshift.data.federation import Federation
from fedshift.runs.record import Record


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    name: str
    method: str
    scenario: str
    rounds: int
    steps: int  # local ones of all clients and rounds together, by the scenario's budget
    clients: int  # that train in a round
    seconds: float  # with one process
    up: float  # bytes, all clients and rounds together
    down: float
    memory: float  # bytes of one process
    disk: float  # bytes of the run directory

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def expect(
    config: RunConfig,
    server: Server,
    record: Record,
    federation: Federation,
    *,
    training: float,
    scoring: float,
) -> Estimate:
    """What a run takes whose rounds are like those that were played, the last of them scored.

    ``training`` are the seconds of such a round, ``scoring`` those of the one scoring.
    """
    scenario = config.scenario
    rounds, scored = scenario.rounds, math.ceil(scenario.rounds / scenario.evaluate_every)
    train, total, once = record.traffic("train"), record.traffic(), record.traffic("enrol")
    ways = {
        way: once[way]
        + rounds * train[way] / server.round
        + scored * (total[way] - train[way] - once[way])
        for way in ("up", "down")
    }
    return Estimate(
        config.name,
        config.label,
        config.scenario_label,
        rounds,
        round(rounds * local_steps(scenario, federation)[0]),
        scenario.cohort_size(len(server.roster)),
        rounds * training + scored * scoring,
        ways["up"],
        ways["down"],
        peak_memory(),
        _disk(server, record, rounds) + _predicted(config, federation),
    )


def local_steps(scenario: Scenario, federation: Federation) -> tuple[float, float]:
    """Local steps of a round: of all its clients together, and of one of them on average."""
    each = [
        scenario.steps
        or (scenario.epochs or 1) * math.ceil(len(site.data.train) / scenario.batch_size)
        for site in federation.sites.values()
    ]
    mean = sum(each) / max(1, len(each))
    return mean * scenario.cohort_size(len(each)), mean


def peak_memory() -> float:
    """The most memory that this process has used, in bytes; 0 where that is not known."""
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415  not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _disk(server: Server, record: Record, rounds: int) -> float:
    """Checkpoint, best and last weights; three versions of every client's state; the ledger."""
    clients = list(server.roster)
    states = sum(
        tree.nbytes(entries)
        for client in clients
        for store in (record.store, server.personal)
        for entries in store.load(client, before=server.round + 1).values()
    )
    parts = sum(tree.nbytes(entries) for entries in server.state.values())
    lines = 250 * len(record.ledger) * rounds / server.round
    return 3 * tree.nbytes(server.shared) + parts + 3 * states + lines


def _predicted(config: RunConfig, federation: Federation) -> float:
    """Targets and outputs of the test samples, four bytes each."""
    sites = [site.data.test for site in federation.sites.values()]
    domains = [splits.test for splits in federation.domains.values()]
    unseen = [federation.unseen.test] if federation.unseen is not None else []
    kinds = {"personal": sites, "personal-trained": sites, "global": domains}
    count = sum(len(s) for p in config.scenario.protocols for s in kinds.get(p, unseen))
    return 4.0 * count * (len(federation.classes) + 1)
