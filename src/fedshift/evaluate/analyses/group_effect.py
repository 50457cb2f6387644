"""Group effect: what averaging loses against the clients' own models (Sun et al., ACML 2022).

It reads the single updates of a round, so a round that is analysed keeps all its replies. It may
use ``server.net`` as scratch memory but must never change the server's model.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from fedshift.base.tree import Tree
from fedshift.core.analysis import Analysis, register_analysis
from fedshift.core.message import Update
from fedshift.core.net import load
from fedshift.core.objective import score
from fedshift.core.scenario import Scenario
from fedshift.core.server import Server
from fedshift.data.federation import Federation


@register_analysis("group-effect")
class GroupEffect(Analysis):
    """Target accuracies of the round's models, before and after they are merged."""

    title = "target accuracy and group effect"

    def problem(self, scenario: Scenario) -> str:
        """It needs a target."""
        return "" if scenario.unseen else "is measured on the unseen domain; name one"

    def measure(
        self, server: Server, updates: Sequence[Update], federation: Federation
    ) -> dict[str, float]:
        """TTA (Eq. 11) of this round's models in per cent, and GE (Eq. 12) = local - aggregated.

        ``local`` is the mean over the round's trained models, ``aggregated`` the aggregated model
        before any server phase, ``tta`` the model at the end of the round, ``group_effect_refined``
        = local - tta. Entries that clients do not upload are taken from the aggregated model, or
        have their initial values if the server never sees them.
        """
        merged = server.initial | server.aggregated
        own = [target_accuracy(server, federation, merged | u.shared | u.personal) for u in updates]
        local = statistics.fmean(own)
        aggregated = target_accuracy(server, federation, merged)
        tta = target_accuracy(server, federation, server.initial | server.shared)
        return {
            "local": local,
            "aggregated": aggregated,
            "tta": tta,
            "group_effect": local - aggregated,
            "group_effect_refined": local - tta,
        }


def target_accuracy(server: Server, federation: Federation, model: Tree) -> float:
    """The main measure of ``model`` on the unseen domain's test samples, in per cent."""
    assert federation.unseen is not None
    load(server.net, model)
    server.net.eval()
    predict = partial(server.method.predict, server.net, server.scoring())
    task = server.scenario.task
    return score(predict, federation.unseen.test, task)[task.main]
