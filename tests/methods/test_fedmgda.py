"""Hu et al., IEEE TNSE 2022, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.registry import build
from fedshift.methods.fedmgda import CommonDescent, common_shares
from fedshift.testing import play, start


def step(v, p, eps):
    """The vector sum_k c_k v_k for updates (n, d)."""
    return common_shares(torch.from_numpy(v @ v.T), torch.tensor(p).double(), eps).numpy() @ v


def test_two_clients_meet_on_the_bisector_whatever_the_lengths_of_their_updates():
    v = np.array([[3.0, 0.0], [0.0, 0.01]])
    np.testing.assert_allclose(step(v, [0.5, 0.5], 1.0), [0.5, 0.5], rtol=1e-9)
    np.testing.assert_allclose(step(v, [0.9, 0.1], 1.0), [0.5, 0.5], rtol=1e-9)


def test_with_zero_eps_it_is_the_weighted_mean_of_the_directions():
    v = np.random.default_rng(0).normal(size=(4, 7))
    p = np.array([0.1, 0.2, 0.3, 0.4])
    units = v / np.linalg.norm(v, axis=1, keepdims=True)
    np.testing.assert_allclose(step(v, p, 0.0), p @ units, rtol=1e-9)


def test_weights_stay_within_eps_of_the_clients_own():
    """(1, 0) and (0, 1) with p = (0.8, 0.2) want equal weights; eps = 0.1 allows (0.7, 0.3)."""
    np.testing.assert_allclose(step(np.eye(2), [0.8, 0.2], 0.1), [0.7, 0.3], rtol=1e-9)


def test_no_client_is_opposed_without_the_limit():
    """The shortest vector of the hull has at least its own squared length with every direction."""
    v = np.random.default_rng(3).normal(size=(6, 30)) + 0.2
    d = step(v, np.full(6, 1 / 6), 1.0)
    units = v / np.linalg.norm(v, axis=1, keepdims=True)
    assert (units @ d).min() >= d @ d - 1e-8
    assert d @ d > 0.01


def test_opposite_clients_do_not_move_the_model_and_idle_ones_do_not_stop_it():
    v = np.array([[1.0, 0.0], [-2.0, 0.0]])
    np.testing.assert_allclose(step(v, [0.5, 0.5], 1.0), [0, 0], atol=1e-9)
    idle = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(step(idle, [0.5, 0.5], 1.0), [0.6, 0.8], rtol=1e-9)
    assert step(np.zeros((2, 2)), [0.5, 0.5], 0.1).tolist() == [0, 0]


def test_a_round_takes_that_step_over_the_whole_net(replies):
    session = start(build("fedmgda-plus", eps=0.05))
    keys = sorted(session.server.parameters)
    old = np.concatenate([session.server.shared[k].flatten().double().numpy() for k in keys])
    play(session, 1)
    rows = replies(session, 1)
    v = [np.concatenate([u.shared[k].flatten().double().numpy() for k in keys]) - old for u in rows]
    p = np.array([u.examples for u in rows]) / sum(u.examples for u in rows)
    new = np.concatenate([session.server.shared[k].flatten().numpy() for k in keys])
    np.testing.assert_allclose(new - old, step(np.stack(v), p, 0.05), atol=1e-6)
    assert np.linalg.norm(new - old) <= 1.0 + 1e-6


def test_equal_updates_give_a_step_of_length_one_times_the_servers_rate(bowls):
    """One client at a bowl: its direction, and the rate of the server's optimiser as the length."""
    for rate in (1.0, 0.25):
        whole = build("fedmgda-plus", lr=rate).aggregate
        assert isinstance(whole, CommonDescent)
        session = play(bowls.start(aggregate=whole, domains=("far",)), 1)
        moved = session.server.shared["bowl.w"].numpy() - bowls.w
        assert np.linalg.norm(moved) == pytest.approx(rate, rel=1e-5)
