"""Analyses: what may be measured of a run at each evaluation besides scores.

A scenario lists them in ``analyses``; ``experiment.session`` runs them after a scored round and the
run's record keeps their numbers under their name. A new one is a file with a registered class, in
``fedshift.evaluate.analyses`` or in a plug-in; nothing else changes. An analysis must never change
the run: ``server.net`` is for temporary use, everything else is read-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from fedshift.base.registry import Registry

if TYPE_CHECKING:
    from fedshift.core.message import Update
    from fedshift.core.scenario import Scenario
    from fedshift.core.server import Server
    from fedshift.data.federation import Federation


class Analysis:
    """Numbers about a round.

    Attributes:
        title: What the numbers are, for people.
        reads_updates: It looks at the updates of single clients: a round then keeps all of them,
            and a privacy part that shows only the aggregate refuses it.
    """

    title: ClassVar[str]
    reads_updates: ClassVar[bool] = True

    def problem(self, scenario: Scenario) -> str:  # noqa: ARG002
        """Why it cannot be measured in a scenario; empty if it can."""
        return ""

    def measure(
        self, server: Server, updates: Sequence[Update], federation: Federation
    ) -> dict[str, float]:
        """The numbers after a round, by name."""
        raise NotImplementedError


ANALYSES: Registry[Analysis] = Registry(
    "analysis", "fedshift.evaluate.analyses", "fedshift.analyses"
)
register_analysis = ANALYSES.register


def analysis(name: str) -> Analysis:
    """The analysis of that name, or an error that suggests the closest names."""
    return ANALYSES.get(name).build()
