"""Group effect: what averaging loses against the clients' own models (Sun et al., ACML 2022)."""

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

    ``local`` is the mean over the round's trained models, ``aggregated`` the merged model before
    any server phase, ``tta`` the model that the round ends with, ``group_effect_refined`` =
    local - tta. What clients do not upload is as in the merged model, or as before round 1 where
    the server never sees it.
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
    """Per cent of the unseen domain's test samples that ``model`` gets right."""
    assert federation.unseen is not None
    load(server.net, model)
    server.net.eval()
    found = score(partial(server.method.predict, server.net, client=None), federation.unseen.test)
    return 100.0 * found["right"] / found["count"]
