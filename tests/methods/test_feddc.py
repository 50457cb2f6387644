"""Gao et al., CVPR 2022."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.registry import build
from fedshift.engine.preflight import check_needs
from fedshift.methods.feddc import LocalDrift, UpdateCorrection
from fedshift.testing import play, start, tiny_scenario

NAMES = ("left", "right", "far")


def start_feddc(bowls, alpha, *, accumulated=False, **changes):
    parts = (UpdateCorrection(accumulated=accumulated), LocalDrift(alpha))
    return bowls.start(*parts, aggregate=Mean(Uniform()), **changes)


def by_hand(bowls, cohorts, alpha, *, lr=0.1, steps=3, accumulated=False):
    """Model, drifts and last updates after the rounds whose clients are ``cohorts``."""
    theta, h, g_k = bowls.w, dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, np.zeros(2))
    for cohort in cohorts:
        g = sum(g_k[k] for k in NAMES) / len(NAMES)
        sent, last = [], {}
        for k in cohort:
            w = theta
            for _ in range(steps):
                pull = alpha * (w + h[k] - theta)
                w = w - lr * (bowls.a[k] * (w - bowls.b[k]) + pull + g - g_k[k])
            h[k] = h[k] + w - theta
            last[k] = (theta - w) / (lr * steps) + (g_k[k] - g if accumulated else 0.0)
            sent.append(w + h[k])
        theta, g_k = np.mean(sent, axis=0), g_k | last
    return theta, h, g_k


@pytest.mark.parametrize("accumulated", [False, True])
def test_feddc_follows_the_algorithm(bowls, state_of, accumulated):
    """Four rounds, two of three clients in each, against NumPy."""
    changes = {"domains": NAMES, "clients_per_round": 2, "rounds": 4}
    session = play(start_feddc(bowls, 0.7, accumulated=accumulated, **changes))
    roster = list(session.server.roster)
    drawn = [session.server.scenario.cohort(0, t, roster) for t in range(1, 5)]
    cohorts = [[c.removesuffix("-0") for c in cohort] for cohort in drawn]
    theta, h, g_k = by_hand(bowls, cohorts, 0.7, accumulated=accumulated)
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), theta, rtol=1e-4, atol=1e-5)
    for k in NAMES:
        drift = state_of(session, f"{k}-0", "local-drift")["bowl.w"].numpy()
        last = state_of(session, f"{k}-0", "update-correction")["bowl.w"].numpy()
        np.testing.assert_allclose(drift, h[k], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last, g_k[k], rtol=1e-3, atol=1e-4)


def test_without_a_penalty_round_1_steps_twice_as_far_as_fedavg(bowls):
    """h = Delta, so w + h = theta + 2 Delta."""
    fedavg = play(bowls.start(aggregate=Mean(Uniform())), 1).server.shared["bowl.w"].numpy()
    feddc = play(start_feddc(bowls, 0.0), 1).server.shared["bowl.w"].numpy()
    np.testing.assert_allclose(feddc - bowls.w, 2 * (fedavg - bowls.w), rtol=1e-5)


def test_feddc_reaches_the_joint_optimum_where_fedavg_drifts(bowls):
    """There w_k = theta, so grad F_k = -alpha h_k, and the drifts add up to zero."""
    session = play(start_feddc(bowls, 2.0, rounds=40, steps=10, lr=0.05))
    a, b = (np.stack([v["left"], v["right"]]) for v in (bowls.a, bowls.b))
    optimum = (a * b).sum(0) / a.sum(0)
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), optimum, atol=1e-3)


def test_the_client_keeps_its_model_and_sends_it_with_its_drift(state_of, replies):
    session = start("feddc", scored="trained")
    theta = session.server.shared
    play(session, 1)
    for update in replies(session, 1):
        kept, h = (state_of(session, update.client, n) for n in ("trained", "local-drift"))
        assert h.keys() == session.server.parameters
        for key, value in update.shared.items():
            torch.testing.assert_close(value, kept[key] + h[key] if key in h else kept[key])
        for key in h:  # the first drift is the first update
            torch.testing.assert_close(h[key], kept[key] - theta[key])


def test_momentum_is_refused():
    with pytest.raises(ConfigError, match="update-correction holds for sgd, not for momentum"):
        check_needs(build("feddc"), tiny_scenario(momentum=0.5), 4)
