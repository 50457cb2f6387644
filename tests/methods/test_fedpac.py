"""Xu et al., ICLR 2023, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.registry import build
from fedshift.data.dealing.partitions import PerDomain
from fedshift.methods.fedpac import CollaborativeHeads, feature_moments, head_weights
from fedshift.testing import play, start

NAME = CollaborativeHeads().name
PAIR = {"partition": PerDomain(clients_per_domain=1)}
RNG = np.random.default_rng(0)


def test_clients_with_the_same_features_weigh_heads_by_their_inverse_variance():
    h, v = np.tile(RNG.normal(size=12), (4, 1)), np.array([1.0, 2.0, 4.0, 0.5])
    for own in range(4):
        np.testing.assert_allclose(head_weights(h, v, own), (1 / v) / (1 / v).sum(), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_two_clients_have_a_closed_form(scale):
    """a = (V_2 + d, V_1) / (V_1 + V_2 + d) for client 1, d the squared distance of the means."""
    h, v = scale * RNG.normal(size=(2, 6)), scale**2 * np.array([3.0, 2.0])
    d = ((h[0] - h[1]) ** 2).sum()
    np.testing.assert_allclose(
        head_weights(h, v, 0), np.array([v[1] + d, v[0]]) / (v.sum() + d), rtol=1e-5
    )
    np.testing.assert_allclose(
        head_weights(h, v, 1), np.array([v[1], v[0] + d]) / (v.sum() + d), rtol=1e-5
    )


def test_the_weights_are_the_best_on_the_simplex():
    """No draw from the simplex has a smaller objective, and the client's own vertex has not."""
    h, v = RNG.normal(size=(5, 8)), RNG.uniform(0.5, 3.0, 5)

    def objective(a):
        return (a**2 * v).sum() + ((a @ (h[2] - h)) ** 2).sum()

    found = head_weights(h, v, 2)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    best = objective(found)
    assert best < objective(np.eye(5)[2])
    assert all(best <= objective(a) + 1e-9 for a in RNG.dirichlet(np.ones(5), 500))


def test_clients_that_are_alike_in_everything_share_evenly():
    np.testing.assert_allclose(head_weights(np.ones((3, 4)), np.zeros(3), 1), np.full(3, 1 / 3))


def test_the_moments_are_the_mean_and_the_variance_of_that_mean():
    """H = mean of y z', V = trace of its covariance over n."""
    z, y = RNG.normal(size=(9, 4)), RNG.integers(0, 3, 9)
    outer = np.stack(
        [np.outer(np.eye(3)[c], row) for c, row in zip(y, z, strict=True)]
    )  # (n, K, D)
    h, v = feature_moments(torch.tensor(z), torch.tensor(np.eye(3)[y]))
    np.testing.assert_allclose(h.numpy(), outer.mean(0), rtol=1e-6)
    assert float(v) == pytest.approx(outer.reshape(9, -1).var(0).sum() / 9, rel=1e-6)


def test_heads_are_combined_for_each_client(replies):
    """Two clients, in closed form, from what they sent."""
    session = play(start("fedpac", **PAIR), 1)
    rows = replies(session, 1)
    h = [u.payload[f"{NAME}/moments"].numpy().astype(np.float64) for u in rows]
    v = [float(u.payload[f"{NAME}/variance"]) for u in rows]
    d = ((h[0] - h[1]) ** 2).sum()
    for i, u in enumerate(rows):
        other = 1 - i
        own = (v[other] + d) / (sum(v) + d)
        assert 0.01 < own < 0.99  # far enough from both to tell
        for key in ("head.weight", "head.bias"):
            expected = own * u.personal[key].numpy() + (1 - own) * rows[other].personal[key].numpy()
            kept = session.server.personal_of(u.client)[key].numpy()
            np.testing.assert_allclose(kept, expected, rtol=1e-4, atol=1e-6)


def test_the_moments_are_those_of_the_received_body_in_eval_mode(replies):
    session = play(start("fedpac"), 1)
    received = session.server.shared
    play(session, 1)
    net = session.server.net
    net.load_state_dict(session.server.initial | received)
    for update in replies(session, 2):
        data = session.federation.sites[update.client].data.train
        x, y = data.take(torch.arange(len(data)))
        with torch.no_grad():
            z = net.eval()(x).features.numpy()
        expected = np.eye(4)[y.numpy()].T @ z / len(y)
        np.testing.assert_allclose(
            update.payload[f"{NAME}/moments"].numpy(), expected, rtol=1e-4, atol=1e-5
        )


def test_a_client_alone_is_fedrep_with_aligned_features(same):
    """One participant keeps its head: a = 1."""
    plan = {"domains": ("dark",), "partition": PerDomain(clients_per_domain=1)}
    alone, fedrep = (
        play(start(m, **plan), 2) for m in ("fedpac - global-prototypes", "fedrep[head_epochs=1]")
    )
    same(alone.server.shared, fedrep.server.shared)


def test_a_client_that_did_not_take_part_keeps_its_head():
    session = start("fedpac", clients_per_round=2)
    before = {c: session.server.personal_of(c) for c in session.server.roster}
    play(session, 1)
    visited = {m.client for m in session.transport.seen if m.task == "train"}
    assert len(visited) == 2
    for client, head in before.items():
        now = session.server.personal_of(client)
        same = all(torch.equal(now[k], head[k]) for k in head)
        assert same == (client not in visited)


def test_features_are_pulled_to_the_means_of_their_class_from_round_2_on(replies):
    session = play(start(build("fedpac", lam=2.0)), 2)
    assert not any("global-prototypes" in u.metrics for u in replies(session, 1))
    assert all(u.metrics["global-prototypes"] > 0 for u in replies(session, 2))
