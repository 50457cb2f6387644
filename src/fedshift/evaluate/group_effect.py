"""Group effect: what averaging loses against the clients' own models (Sun et al., ACML 2022)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from fedshift.data.federation import Federation
from fedshift.evaluate.scoring import score
from fedshift.message import Update
from fedshift.net import load
from fedshift.server import Server
from fedshift.tree import Tree


def group_effect(
    server: Server, updates: Sequence[Update], federation: Federation
) -> dict[str, float]:
    """Accuracy on the unseen domain, in per cent, and how far local models are above the merged.

    ``local`` is the mean over this round's trained models (private entries as they were before
    round 1), ``aggregated`` the merged model before any server phase, ``tta`` the model that the
    round ends with, ``group_effect`` = local - aggregated.
    """
    rest = server.initial
    own = [target_accuracy(server, federation, rest | u.shared | u.personal) for u in updates]
    local = statistics.fmean(own)
    aggregated = target_accuracy(server, federation, rest | server.aggregated)
    return {
        "local": local,
        "aggregated": aggregated,
        "tta": target_accuracy(server, federation, rest | server.shared),
        "group_effect": local - aggregated,
    }


def target_accuracy(server: Server, federation: Federation, model: Tree) -> float:
    """Per cent of the unseen domain's test samples that ``model`` gets right."""
    assert federation.unseen is not None
    load(server.net, model)
    server.net.eval()
    found = score(partial(server.method.predict, server.net, client=None), federation.unseen.test)
    return 100.0 * found["right"] / found["count"]
