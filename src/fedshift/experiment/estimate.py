"""What a run will take, before it is started: time, bytes, memory and disk, from a timed warm-up.

The commands ``run`` and ``compare`` call it where only that is wanted. A warm-up plays one round of
the run in memory and scores it; nothing is written, and the run itself starts from scratch. Where a
round has many local steps, two short rounds are timed instead and a line is drawn through them.
What it says is a guess from one round on this machine as busy as it is now, never a promise.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from typing import Any

from fedshift.base import tree
from fedshift.base.process import one_thread
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.engine.federation import federate
from fedshift.experiment.session import Session, prepare

SHORT = (4, 12)  # local steps of the two short rounds
MANY = 300  # local steps of all clients together, above which short rounds are timed


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    name: str
    method: str
    scenario: str
    rounds: int
    clients: int  # that train in a round
    seconds: float  # with one process
    up: float  # bytes, all clients and rounds together
    down: float
    memory: float  # bytes of one process
    disk: float  # bytes of the run directory

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def estimate(config: RunConfig, method: Method) -> Estimate:
    """Time a warm-up of a run and extrapolate; nothing is written."""
    scenario = config.scenario
    with one_thread():
        session, training, scoring = _timed(config, method)
    rounds, scored = scenario.rounds, math.ceil(scenario.rounds / scenario.evaluate_every)
    record = session.record
    train, total, once = record.traffic("train"), record.traffic(), record.traffic("enrol")
    ways = {
        way: once[way] + rounds * train[way] + scored * (total[way] - train[way] - once[way])
        for way in ("up", "down")
    }
    return Estimate(
        config.name,
        config.label,
        config.scenario_label,
        rounds,
        scenario.cohort_size(len(session.federation.sites)),
        rounds * training + scored * scoring,
        ways["up"],
        ways["down"],
        peak_memory(),
        _disk(session, rounds),
    )


def _timed(config: RunConfig, method: Method) -> tuple[Session, float, float]:
    """A session after its warm-up; seconds to train a round, and seconds to score it."""
    whole, steps = _steps(config)
    if whole <= MANY:
        session, row = _warm_up(config, method)
        return session, row["seconds"], row["seconds_scoring"]
    times = []
    for count in SHORT:
        session, row = _warm_up(config, method, steps=count)
        times.append(row["seconds"])
    slope = max(0.0, (times[1] - times[0]) / (SHORT[1] - SHORT[0]))
    return session, times[0] + slope * max(0.0, steps - SHORT[0]), row["seconds_scoring"]


def _steps(config: RunConfig) -> tuple[float, float]:
    """Local steps of a round: of all its clients together, and of one of them on average."""
    scenario = config.scenario
    sites = federate(scenario, config.seed).sites.values()
    each = [
        scenario.steps
        or (scenario.epochs or 1) * math.ceil(len(site.data.train) / scenario.batch_size)
        for site in sites
    ]
    mean = sum(each) / len(each)
    return mean * scenario.cohort_size(len(each)), mean


def _warm_up(
    config: RunConfig, method: Method, steps: int | None = None
) -> tuple[Session, dict[str, Any]]:
    """Play and score one round in memory."""
    changes = {"steps": steps} if steps else {}
    scenario = config.scenario.change(rounds=1, evaluate_every=1, **changes)
    session = prepare(config.model_copy(update={"scenario": scenario}), method)
    try:
        return session, session.advance()
    finally:
        session.transport.close()


def peak_memory() -> float:
    """The most memory that this process has used, in bytes; 0 where that is not known."""
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415  not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _disk(session: Session, rounds: int) -> float:
    """Checkpoint, best and last weights; three versions of every client's state; the ledger."""
    server = session.server
    clients = list(server.roster)
    states = sum(
        tree.nbytes(entries)
        for client in clients
        for store in (session.record.store, server.personal)
        for entries in store.load(client, before=2).values()
    )
    parts = sum(tree.nbytes(entries) for entries in server.state.values())
    lines = 250 * len(session.record.ledger) * rounds
    return 3 * tree.nbytes(server.shared) + parts + 3 * states + lines
