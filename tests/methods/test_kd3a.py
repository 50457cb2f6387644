"""Feng et al., ICML 2021: knowledge vote, consensus focus, BatchNorm MMD."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.message import Update
from fedshift.core.net import load
from fedshift.methods.kd3a.consensus import ConsensusFocus, consensus_focus, knowledge_vote, quality
from fedshift.methods.kd3a.method import DistilledMean, mixture_variance
from fedshift.testing import play, start


def models(*rows):
    """Probabilities (n, N, K) of n models."""
    return torch.tensor(rows, dtype=torch.float64)


def test_the_consensus_is_the_mean_of_the_sure_models_that_agree():
    p = models(
        [[0.9, 0.1, 0.0], [0.5, 0.3, 0.2], [0.9, 0.1, 0.0], [0.85, 0.15, 0.0]],
        [[0.8, 0.2, 0.0], [0.2, 0.6, 0.2], [0.0, 0.95, 0.05], [0.1, 0.7, 0.2]],
        [[0.0, 0.0, 1.0], [0.2, 0.0, 0.8], [0.3, 0.3, 0.4], [0.2, 0.7, 0.1]],
    )
    consensus, votes = knowledge_vote(p, 0.8)
    wanted = [
        [0.85, 0.15, 0.0],  # two against one
        [0.2, 0.0, 0.8],  # one is sure, exactly at the gate
        [0.0, 0.95, 0.05],  # one against one: the surer
        [0.85, 0.15, 0.0],  # two agree but are not sure: one vote wins
    ]
    np.testing.assert_allclose(consensus.numpy(), wanted, atol=1e-12)
    assert votes.tolist() == [2, 1, 1, 1]


def test_more_votes_win_against_more_confidence():
    """Two votes of 0.45 against one of 0.95: the sums of probabilities would decide otherwise."""
    p = models([[0.45, 0.3, 0.25]], [[0.45, 0.25, 0.3]], [[0.0, 0.95, 0.05]])
    consensus, votes = knowledge_vote(p, 0.4)
    np.testing.assert_allclose(consensus.numpy(), [[0.45, 0.275, 0.275]])
    assert votes.tolist() == [2]


def test_where_nobody_is_sure_all_are_heard_with_almost_no_weight():
    p = models([[0.6, 0.4]], [[0.2, 0.8]])
    consensus, votes = knowledge_vote(p, 0.9)
    np.testing.assert_allclose(consensus.numpy(), [[0.4, 0.6]])
    assert votes.tolist() == [0.001]
    assert float(quality(p, 0.9)) == 0.0


def test_the_focus_is_what_a_model_adds_to_the_quality_of_the_consensus():
    """Inputs 1 and 2: a and b agree. Input 3: c alone is sure. d contradicts them on input 1."""
    a = [[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]]
    b = [[0.8, 0.2], [1.0, 0.0], [0.5, 0.5]]
    c = [[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]
    d = [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]
    p = models(a, b, c, d)
    assert float(quality(p, 0.8)) == pytest.approx(2 * 0.85 + 2 * 0.95 + 1.0)
    # without a: input 1 is b (0.8) against d (1.0), d wins with one vote; input 2 is b alone
    wanted = [
        2 * 0.85 + 2 * 0.95 - (1.0 + 1.0),
        2 * 0.85 + 2 * 0.95 - (1.0 + 0.9),
        1.0,
        0.0,  # d never wins: it adds nothing
    ]
    np.testing.assert_allclose(consensus_focus(p, 0.8).numpy(), wanted, atol=1e-12)


def test_the_variance_is_that_of_the_pooled_samples():
    rng = np.random.default_rng(0)
    samples = [rng.normal(loc, scale, size=(50, 3)) for loc, scale in ((0, 1), (3, 0.5), (-1, 2))]
    weights = np.array([0.2, 0.5, 0.3])
    pooled = sum(
        w * ((s - sum(v * t.mean(0) for v, t in zip(weights, samples, strict=True))) ** 2).mean(0)
        for w, s in zip(weights, samples, strict=True)
    )
    found = mixture_variance(
        *(torch.from_numpy(np.stack([f(s) for s in samples])) for f in (mean_of, variance_of)),
        torch.from_numpy(weights),
    )
    np.testing.assert_allclose(found.numpy(), pooled, rtol=1e-10)


def mean_of(samples):
    return samples.mean(0)


def variance_of(samples):
    return samples.var(0)


def test_the_gate_rises_from_the_first_round_to_the_last():
    server = start("kd3a", rounds=4).server
    found = []
    for server.round in (1, 2, 4):
        found.append(ConsensusFocus().gate(server))
    assert found == pytest.approx([0.8, 0.85, 0.95])


def test_at_a_gate_that_nobody_passes_the_target_joins_a_mean_by_examples(replies):
    """The target's model hardly moves then, and weighs by its number of inputs."""
    session = start("kd3a[gate_begin=1, gate_end=1]", rounds=1)
    received = session.server.shared
    play(session)
    rows = replies(session, 1)
    n = np.array([u.examples for u in rows], dtype=float)
    target = len(session.federation.unseen.inputs)
    share = target / (target + n.sum())
    for key in session.server.parameters:
        mean = np.tensordot(n / n.sum(), np.stack([u.shared[key].numpy() for u in rows]), axes=1)
        wanted = (1 - share) * mean + share * received[key].numpy()
        np.testing.assert_allclose(session.server.shared[key].numpy(), wanted, atol=2e-4)


def test_the_targets_model_descends_the_weighted_cross_entropy_of_the_consensus():
    """One batch of all inputs: d/db of the head is the mean of v (q - p)."""
    session = start("kd3a", batch_size=64)
    server = session.server
    server.round, size = 1, len(session.federation.unseen.inputs)
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=size)
    votes = rng.choice([0.001, 0.5, 1.0], size=size)
    told = {
        "rows": torch.arange(size),
        "consensus": torch.from_numpy(p).float(),
        "votes": torch.from_numpy(votes).float(),
    }
    found = DistilledMean._distilled(server, [Update("dark-0", "train", 1, steps=1)], told)
    load(server.net, server.initial)
    x, _ = session.federation.unseen.inputs.take(torch.arange(size))
    logits = server.net.train()(x).logits.detach().double().numpy()
    q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    slope = (votes[:, None] * (q - p)).mean(0)
    moved = (found["head.bias"] - server.initial["head.bias"]).double().numpy()
    np.testing.assert_allclose(moved, -0.05 * slope, rtol=1e-3, atol=1e-7)


def test_clients_weigh_by_examples_times_focus(replies):
    session = play(start("kd3a[gate_begin=0.3]", rounds=1))
    server, rows = session.server, replies(session, 1)
    server.round = 1
    weighting = ConsensusFocus(gate_begin=0.3)
    found = weighting(server, rows).numpy()
    target = session.federation.unseen.inputs
    order = torch.randperm(len(target), generator=server.generator(weighting.name))
    x, _ = target.take(order)
    p = []
    for update in rows:
        load(server.net, server.initial, update.shared)
        p.append(server.net.train()(x).logits.detach().double().softmax(1))
    focus = consensus_focus(torch.stack(p), 0.3).numpy()
    n = np.array([u.examples for u in rows])
    np.testing.assert_allclose(found, n * focus / (n * focus).sum(), rtol=1e-4, atol=1e-6)


def test_variances_are_averaged_only_on_request():
    mixed, plain = (
        play(start(f"kd3a{s}", rounds=1)).server.shared for s in ("", "[averaged_variances=true]")
    )
    differ = {k for k, v in mixed.items() if not torch.equal(v, plain[k])}
    assert differ
    assert all(k.endswith("running_var") for k in differ)
    assert all(bool((mixed[k] >= plain[k]).all()) for k in differ)  # by the spread of the means
