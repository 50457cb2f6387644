"""What a run will take, before it is started: time, bytes, memory and disk, from a timed warm-up.

The commands ``run`` and ``compare`` call it where only that is wanted, and before runs that are so
long that a warm-up costs little of them. A warm-up plays two rounds of the run in memory, since the
first may be longer than the others (CSAC's acquisition is nine budgets long), and scores the last;
nothing is written, and the run itself starts from scratch. Where a round has many local steps,
short rounds of two lengths are timed instead and a line is drawn through them. What it says is a
guess on this machine as busy as it is now, never a promise.
"""

from __future__ import annotations

from fedshift.base.process import one_thread
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.engine.federation import federate_for
from fedshift.experiment.expectation import Estimate, expect, local_steps
from fedshift.experiment.session import Session, prepare

SHORT = (4, 12)  # local steps of the two short rounds
MANY = 300  # local steps of all clients together, above which short rounds are timed
SHARE = 0.02  # of a run that a warm-up may cost


def estimate(config: RunConfig, method: Method) -> Estimate:
    """Time a warm-up of a run and extrapolate; nothing is written."""
    with one_thread():
        session, training, scoring = _timed(config, method)
    return expect(
        config,
        session.server,
        session.record,
        session.federation,
        training=training,
        scoring=scoring,
    )


def worth_a_warm_up(config: RunConfig, runs: int = 1) -> bool:
    """Whether a warm-up costs little of the runs of a configuration; else the first round tells.

    It costs about two rounds.
    """
    return runs * config.scenario.rounds >= 1 / SHARE


def _timed(config: RunConfig, method: Method) -> tuple[Session, float, float]:
    """A session after its warm-up; seconds to train a round, and seconds to score it."""
    held = federate_for(method, config.scenario, config.seed)
    whole, steps = local_steps(config.scenario, held)
    if whole <= MANY:
        return _warm_up(config, method)
    times = []
    for count in SHORT:
        session, training, scoring = _warm_up(config, method, steps=count)
        times.append(training)
    slope = max(0.0, (times[1] - times[0]) / (SHORT[1] - SHORT[0]))
    return session, times[0] + slope * max(0.0, steps - SHORT[0]), scoring


def _warm_up(
    config: RunConfig, method: Method, steps: int | None = None
) -> tuple[Session, float, float]:
    """Play two rounds in memory and score the last; seconds of a round of the run on average."""
    changes = {"steps": steps} if steps else {}
    played = min(2, config.scenario.rounds)
    scenario = config.scenario.change(rounds=played, evaluate_every=played, **changes)
    session = prepare(config.model_copy(update={"scenario": scenario}), method)
    try:
        rows = [session.advance() for _ in range(played)]
        first, later = rows[0]["seconds"], rows[-1]["seconds"]
        rounds = config.scenario.rounds
        return session, (first + (rounds - 1) * later) / rounds, rows[-1]["seconds_scoring"]
    finally:
        session.transport.close()
