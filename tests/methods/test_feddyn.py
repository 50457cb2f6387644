"""Acar et al., ICLR 2021, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.base.errors import ConfigError
from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.registry import build
from fedshift.engine.preflight import check_needs
from fedshift.methods.feddyn import Dual, DynamicDual
from fedshift.testing import play, tiny_scenario

NAME = DynamicDual().name
SOLVED = {"steps": 30, "lr": 0.3}  # (1 - 0.3 (0.5 + 0.7))^30 = 2e-6: the local problem is solved


def start_feddyn(bowls, alpha, clip=None, **changes):
    return bowls.start(DynamicDual(alpha, clip), aggregate=Mean(Uniform(), Dual()), **changes)


def test_from_zero_duals_round_1_is_prox_and_then_twice_the_mean_drift(bowls):
    alpha = 0.7
    session = play(start_feddyn(bowls, alpha, **SOLVED), 1)
    drifts = []
    for k in ("left", "right"):
        # argmin a/2 (w - b)^2 + alpha/2 (w - theta)^2
        solved = (bowls.a[k] * bowls.b[k] + alpha * bowls.w) / (bowls.a[k] + alpha)
        drifts.append(solved - bowls.w)
    expected = bowls.w + 2 * np.mean(drifts, axis=0)
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), expected, rtol=1e-4)


def test_the_duals_follow_algorithm_1(bowls, state_of):
    """Five rounds of solved local problems, two of three clients in each."""
    alpha, n = 0.7, 3
    changes = {"domains": ("left", "right", "far"), "clients_per_round": 2, "rounds": 5} | SOLVED
    session = start_feddyn(bowls, alpha, **changes)
    theta, h = bowls.w, np.zeros(2)
    dual = {k: np.zeros(2) for k in ("left", "right", "far")}
    for round_ in range(1, 6):
        play(session, 1)
        cohort = session.server.scenario.cohort(0, round_, list(session.server.roster))
        models = []
        for k in (client.removesuffix("-0") for client in cohort):
            a, b = bowls.a[k], bowls.b[k]
            w = (a * b + dual[k] + alpha * theta) / (
                a + alpha
            )  # a (w - b) - l + alpha (w - theta) = 0
            dual[k] = dual[k] - alpha * (w - theta)
            models.append(w)
        h = h - alpha / n * sum(w - theta for w in models)
        theta = np.mean(models, axis=0) - h / alpha
    # alpha cancels at the server, which keeps -h / alpha
    kept = session.server.state["dual"]["bowl.w"].numpy()
    np.testing.assert_allclose(kept, -h / alpha, rtol=1e-3)
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), theta, rtol=1e-3)
    for k, value in dual.items():
        kept = state_of(session, f"{k}-0", NAME)["bowl.w"].numpy()
        np.testing.assert_allclose(kept, value, rtol=1e-3, atol=1e-4)


def test_the_dual_enters_the_gradient_with_a_minus_sign(bowls):
    """Unsolved local problems: two rounds of three steps against NumPy."""
    alpha, lr = 0.4, 0.1
    session = play(start_feddyn(bowls, alpha, lr=lr), 2)
    theta, s = bowls.w, np.zeros(2)
    dual = {k: np.zeros(2) for k in ("left", "right")}
    for _ in range(2):
        models = []
        for k in ("left", "right"):
            w = theta
            for _ in range(3):
                w = w - lr * (bowls.a[k] * (w - bowls.b[k]) - dual[k] + alpha * (w - theta))
            dual[k] = dual[k] - alpha * (w - theta)
            models.append(w)
        mean = np.mean(models, axis=0)
        s = s + mean - theta
        theta = mean + s
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), theta, rtol=1e-5)


def test_feddyn_reaches_the_joint_optimum(bowls):
    session = play(start_feddyn(bowls, 0.7, rounds=25, **SOLVED))
    a, b = (np.stack([v["left"], v["right"]]) for v in (bowls.a, bowls.b))
    optimum = (a * b).sum(0) / a.sum(0)
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), optimum, atol=1e-3)


def test_the_gradient_is_clipped(bowls):
    session = play(start_feddyn(bowls, 0.5, clip=1.5, steps=1, lr=0.1), 1)
    models = []
    for k in ("left", "right"):
        gradient = bowls.a[k] * (bowls.w - bowls.b[k])
        assert np.linalg.norm(gradient) > 1.5
        models.append(bowls.w - 0.1 * 1.5 * gradient / np.linalg.norm(gradient))
    mean = np.mean(models, axis=0)
    expected = mean + mean - bowls.w
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), expected, rtol=1e-5)


def test_momentum_is_refused():
    with pytest.raises(ConfigError, match="dynamic-dual holds for sgd, not for momentum"):
        check_needs(build("feddyn"), tiny_scenario(momentum=0.5), 4)
