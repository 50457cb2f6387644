"""Wang et al., CVPR 2025, Sec. 5.4: label-free adaptation to a site that took no part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base import seeds, tree
from fedshift.base.errors import DataError
from fedshift.core.net import load
from fedshift.core.part import Scoring
from fedshift.data.samples import Samples
from fedshift.methods.fdse.consistency import StatisticsConsistency
from fedshift.methods.fdse.decompose import decomposed
from fedshift.testing import play, start

NOTHING = Scoring(None, {}, seeds.generator)


def equation_6(mean, var, mean_g, var_g):
    """As it stands in the paper."""
    d = len(mean)
    return ((mean - mean_g) ** 2).sum() / d + ((var.sum() - var_g.sum()) / d) ** 2


def statistics(net, entries):
    """mu_g and var_g of each layer."""
    return [
        tuple(entries[f"{layer.norm_path}.running_{k}"].double().numpy() for k in ("mean", "var"))
        for _, layer in decomposed(net)
    ]


def target(session):
    return session.federation.unseen.inputs


def consistency_on(net, samples, wanted):
    """L_con of all inputs at once in eval mode, each layer alike, from the formula."""
    x, _ = samples.take(torch.arange(len(samples)))
    seen = []
    handles = [
        net.get_submodule(layer.norm_path).register_forward_pre_hook(
            lambda _, args: seen.append(args[0].double().numpy())
        )
        for _, layer in decomposed(net)
    ]
    with torch.no_grad():
        net.eval()(x)
    for handle in handles:
        handle.remove()
    gaps = [
        equation_6(s.mean((0, 2, 3)), s.var((0, 2, 3)), *w)
        for s, w in zip(seen, wanted, strict=True)
    ]
    return np.mean(gaps)


def test_adaptation_fits_the_erasers_alone_to_unlabelled_inputs():
    session = play(start("fdse", private_at_new_site="mean"), 3)
    net = session.server.net
    kept = tree.clone(net.state_dict())
    wanted = statistics(net, kept)
    before = consistency_on(net, target(session), wanted)
    with seeds.fork("adapt"):
        StatisticsConsistency(adapt_epochs=20).adapt(net, target(session).unlabelled(), NOTHING)
    after = net.state_dict()
    moved = {k for k in kept if not torch.equal(kept[k], after[k])}
    names = ("dse.weight", "bias", "bn_dse.weight", "bn_dse.bias")
    buffers = tuple(f"bn_dse.{k}" for k in ("running_mean", "running_var", "num_batches_tracked"))
    own = {f"{path}.{k}" for path, _ in decomposed(net) for k in names + buffers}
    assert moved == own
    assert consistency_on(net, target(session), wanted) < 0.7 * before
    assert all(p.requires_grad for p in net.parameters())
    assert not any(layer.watched for _, layer in decomposed(net))


def test_the_erasers_descend_on_the_consistency():
    """Beyond what BN_DSE's statistics do by themselves, which is all that remains at rate 0."""
    session = play(start("fdse", private_at_new_site="mean"))
    net, kept, found = session.server.net, tree.clone(session.server.net.state_dict()), []
    wanted = statistics(net, kept)
    for rate in (0.0, 3.0):
        load(net, kept)
        with seeds.fork("adapt"):
            StatisticsConsistency(adapt_epochs=30, adapt_lr=rate).adapt(
                net, target(session), NOTHING
            )
        found.append(consistency_on(net, target(session), wanted))
    assert found[1] < 0.8 * found[0]


def test_a_new_site_is_scored_as_it_is_and_adapted():
    session = play(start("fdse[adapt_epochs=20, adapt_lr=0.05]", private_at_new_site="mean"))
    scores = session.record.metrics[-1]["scores"]
    assert scores["unseen"] != scores["unseen-adapted"]
    still = play(start("fdse[adapt_epochs=0]", private_at_new_site="mean"))
    scores = still.record.metrics[-1]["scores"]
    assert scores["unseen"] == scores["unseen-adapted"]


def test_adaptation_needs_two_inputs_and_a_trained_model():
    session = start("fdse")
    net = session.server.net
    few = Samples(target(session).x, target(session).y, target(session).rows[:1])
    with pytest.raises(DataError, match=r"gives 1 input\(s\) to adapt to"):
        StatisticsConsistency().adapt(net, few, NOTHING)
    before = tree.clone(net.state_dict())
    StatisticsConsistency().adapt(net, target(session), NOTHING)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
