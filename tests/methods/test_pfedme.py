"""Dinh et al., NeurIPS 2020, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ConfigError
from fedshift.core.aggregate import Add, Mean, Uniform
from fedshift.core.net import load
from fedshift.engine.round import exchange
from fedshift.methods.pfedme import MoreauEnvelope
from fedshift.testing import play, start

NAME = MoreauEnvelope().name


def start_pfedme(bowls, lam, k, beta=1.0, **changes):
    aggregate = Mean(Uniform(), Add(beta))
    return bowls.start(MoreauEnvelope(lam, k), aggregate=aggregate, **changes)


@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_pfedme_follows_algorithm_1(bowls, state_of, beta):
    """Three rounds of three batches, K = 4 steps on each, against NumPy."""
    lam, lr, centre = 2.5, 0.1, bowls.w
    session = play(start_pfedme(bowls, lam, 4, beta, lr=lr))
    for _ in range(3):
        sent, own = [], {}
        for k in ("left", "right"):
            w = theta = centre
            for _ in range(3):
                for _ in range(4):
                    theta = theta - lr * (bowls.a[k] * (theta - bowls.b[k]) + lam * (theta - w))
                w = w - lr * lam * (w - theta)
            sent.append(w)
            own[k] = theta
        centre = (1 - beta) * centre + beta * np.mean(sent, axis=0)
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), centre, rtol=1e-4)
    for k, theta in own.items():
        kept = state_of(session, f"{k}-0", NAME)["bowl.w"].numpy()
        np.testing.assert_allclose(kept, theta, rtol=1e-4)


def test_with_an_exact_inner_solution_w_follows_the_envelopes_gradient(bowls, replies):
    """Of a quadratic with curvature a the envelope's is a lam / (a + lam)."""
    lam, lr = 2.0, 0.1
    session = play(start_pfedme(bowls, lam, 200, steps=1, lr=lr), 1)
    for update in replies(session, 1):
        a, b = (v[update.client.removesuffix("-0")] for v in (bowls.a, bowls.b))
        expected = bowls.w - lr * a * lam / (a + lam) * (bowls.w - b)
        np.testing.assert_allclose(update.shared["bowl.w"].numpy(), expected, rtol=1e-5)


def test_without_a_pull_the_shared_model_rests(bowls):
    """lam = 0: theta is trained alone, and w does not follow it."""
    session = play(start_pfedme(bowls, 0.0, 2))
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), bowls.w, rtol=1e-6)


def test_theta_is_scored_at_its_site_and_w_for_everybody(state_of):
    session = play(start("pfedme"), 2)
    server, net = session.server, session.server.net
    scored = exchange(server, session.transport, "score", sorted(server.roster), session.record)
    for update in list(scored):
        x, y = session.federation.sites[update.client].data.test.take(torch.arange(16))
        losses = {}
        for name, entries in (
            ("theta", state_of(session, update.client, NAME)),
            ("w", server.shared),
        ):
            load(net, entries)
            with torch.no_grad():
                losses[name] = float(F.cross_entropy(net.eval()(x).logits, y, reduction="sum"))
        assert update.metrics["test/loss"] == pytest.approx(losses["theta"], rel=1e-5)
        assert abs(losses["theta"] - losses["w"]) > 1e-4
    x, _ = session.federation.unseen.test.take(torch.arange(8))
    load(net, server.shared)
    net.eval()
    assert torch.equal(server.method.predict(net, server.scoring(), x), net(x).logits)


def test_weight_decay_is_thetas_alone(bowls, replies):
    """w moves along lam (w - theta) and nothing else."""
    lam, lr, decay = 2.0, 0.1, 0.3
    session = play(start_pfedme(bowls, lam, 1, steps=1, lr=lr, weight_decay=decay), 1)
    for update in replies(session, 1):
        a, b = (v[update.client.removesuffix("-0")] for v in (bowls.a, bowls.b))
        theta = bowls.w - lr * (a * (bowls.w - b) + decay * bowls.w)
        expected = bowls.w - lr * lam * (bowls.w - theta)
        np.testing.assert_allclose(update.shared["bowl.w"].numpy(), expected, rtol=1e-5)


def test_statistics_move_once_per_batch(replies):
    """As in FedAvg, although each batch is passed K times."""
    counters = [
        [int(u.shared[k]) for k in u.shared if k.endswith("num_batches_tracked")]
        for method in ("fedavg", "pfedme")
        for u in replies(play(start(method), 1), 1)
    ]
    assert counters[:4] == counters[4:]


def test_a_rate_that_diverges_is_refused_before_round_1(bowls):
    with pytest.raises(ConfigError, match=r"lr \* lam, 2\.5 here, .* set lam below 20"):
        start_pfedme(bowls, 25.0, 5, lr=0.1)
