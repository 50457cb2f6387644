"""How many rounds give two methods the same budget: local steps, or bytes, in place of rounds.

``compare`` uses it, and so do the claims. Some methods take more optimiser steps or send more in a
round than FedAvg does, and a comparison at equal rounds then also compares budgets. Two rounds of
each method are played in memory: the first may differ from the others (an acquisition phase), so
the cost of R rounds is that of the first plus R - 1 times that of the second.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedshift.base.process import one_thread
from fedshift.core.message import Update
from fedshift.core.method import Method
from fedshift.core.scenario import Budget, Scenario
from fedshift.experiment.identity import configure_run
from fedshift.experiment.listener import Listener
from fedshift.experiment.session import Options, prepare


class _Steps(Listener):
    """Adds up the local optimiser steps of each round."""

    def __init__(self) -> None:
        self.taken = {1: 0, 2: 0}

    def replied(self, update: Update) -> None:
        """Count a reply to training."""
        if update.task == "train":
            self.taken[update.round] += update.steps


def matched_rounds(methods: Sequence[str | Method], scenario: Scenario) -> dict[str | Method, int]:
    """Rounds for each method, so that what the scenario calls ``equal`` is the same for all.

    The method that costs most in the scenario's rounds keeps them. The others get as many rounds as
    fit into its budget, at least the scenario's.
    """
    if scenario.equal == "rounds":
        return dict.fromkeys(methods, scenario.rounds)
    costs = {method: _costs(method, scenario, scenario.equal) for method in methods}
    most = max(first + (scenario.rounds - 1) * later for first, later in costs.values())
    return {
        method: max(scenario.rounds, 1 + int((most - first) / later))
        for method, (first, later) in costs.items()
    }


def _costs(method: str | Method, scenario: Scenario, equal: Budget) -> tuple[float, float]:
    """The cost of the first round and of a later one."""
    short = scenario.change(rounds=2, evaluate_every=2)
    config, whole = configure_run(method, short)
    steps = _Steps()
    with one_thread():
        session = prepare(config, whole, options=Options(listener=steps))
        try:
            session.advance()
            first = sum(session.record.traffic("train").values())
            session.advance()
        finally:
            session.transport.close()
    if equal == "steps":
        return steps.taken[1], steps.taken[2]
    return first, sum(session.record.traffic("train").values()) - first
