"""Group effect: what averaging loses against the clients' own models (Sun et al., ACML 2022).

``experiment.session`` calls it after a round if the scenario lists the analysis ``group-effect``.
It reads the single updates of a round, so a round that is analysed keeps all its replies. It may
use ``server.net`` as scratch memory but must never change the server's model.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from fedshift.base.tree import Tree
from fedshift.core.message import Update
from fedshift.core.net import load
from fedshift.core.objective import score
from fedshift.core.server import Server
from fedshift.data.federation import Federation


def group_effect(
    server: Server, updates: Sequence[Update], federation: Federation
) -> dict[str, float]:
    """TTA (Eq. 11) of this round's models in per cent, and GE (Eq. 12) = local - aggregated.

    ``local`` is the mean over the round's trained models, ``aggregated`` the aggregated model
    before any server phase, ``tta`` the model at the end of the round, ``group_effect_refined`` =
    local - tta. Entries that clients do not upload are taken from the aggregated model, or have
    their initial values if the server never sees them.
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
    """Accuracy of ``model`` on the unseen domain's test samples, in per cent."""
    assert federation.unseen is not None
    load(server.net, model)
    server.net.eval()
    found = score(partial(server.method.predict, server.net, client=None), federation.unseen.test)
    return 100.0 * found["right"] / found["count"]
