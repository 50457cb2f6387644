"""Jhunjhunwala et al., ICLR 2023."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.message import Update
from fedshift.core.net import load
from fedshift.core.part import Scoring
from fedshift.core.registry import build
from fedshift.methods.fedexp import Extrapolation, LastTwo
from fedshift.testing import play, start, worker

NAME = LastTwo().name


def combined(deltas, epsilon=1e-12, weights=None):
    """theta + eta_g times the mean of ``deltas`` from theta = (1, 2, 3, 4), in two tensors."""
    theta = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    server = SimpleNamespace(
        shared={"a": theta[:1], "b": theta[1:]}, parameters=frozenset({"a", "b"})
    )
    models = [theta + torch.tensor(d, dtype=torch.float64) for d in deltas]
    updates = [
        Update(str(i), "train", 1, shared={"a": m[:1], "b": m[1:]}) for i, m in enumerate(models)
    ]
    w = torch.tensor(weights or [1 / len(deltas)] * len(deltas), dtype=torch.float64)
    found = Extrapolation(epsilon=epsilon).combine(server, updates, w)
    return torch.cat([found["a"], found["b"]]).numpy() - theta.numpy()


def test_equal_updates_are_averaged_as_they_are():
    """sum |d|^2 / (2 M |d|^2) = 1/2, and the rate is at least 1."""
    np.testing.assert_allclose(combined([[1, -2, 0, 1]] * 3), [1, -2, 0, 1])


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_m_orthogonal_updates_of_equal_length_give_the_rate_m_over_2(m):
    deltas = 3.0 * np.eye(4)[:m]
    expected = max(1.0, m / 2) * deltas.mean(0)
    np.testing.assert_allclose(combined(deltas.tolist()), expected, rtol=1e-6)


def test_the_rate_is_the_papers_for_any_updates_and_weights():
    deltas = np.array([[4.0, -3.0, 0.5, 1.0], [-3.5, 3.0, 0.1, 1.0], [0.0, 0.0, 2.0, -2.0]])
    p, epsilon = np.array([0.5, 0.3, 0.2]), 0.25
    mean = p @ deltas
    rate = (p * (deltas**2).sum(1)).sum() / (2 * ((mean**2).sum() + epsilon))
    assert rate > 1.5
    found = combined(deltas.tolist(), epsilon, p.tolist())
    np.testing.assert_allclose(found, rate * mean, rtol=1e-6)


def test_where_the_rate_is_one_the_round_is_fedavgs(bowls, same):
    """One client has one update: its rate is 1/2, cut to 1."""
    alone = {"domains": ("left",), "rounds": 2}
    fedavg = play(bowls.start(aggregate=Mean(Uniform()), **alone))
    fedexp = play(bowls.start(aggregate=Extrapolation(Uniform()), **alone))
    same(fedavg.server.shared, fedexp.server.shared)


def test_buffers_are_averaged_and_not_extrapolated(replies):
    session = play(start(build("fedexp", epsilon=1e-12)), 1)
    rows = replies(session, 1)
    n = np.array([u.examples for u in rows]) / sum(u.examples for u in rows)
    buffers = session.server.shared.keys() - session.server.parameters
    means = [k for k in buffers if k.endswith("running_mean")]
    assert means
    for key in means:
        mean = np.tensordot(n, np.stack([u.shared[key].numpy() for u in rows]), axes=1)
        np.testing.assert_allclose(session.server.shared[key].numpy(), mean, rtol=1e-4, atol=1e-6)


def test_the_mean_of_the_last_two_iterates_is_scored_and_the_last_one_trained():
    session = start("fedexp")
    first = play(session, 1).server.shared
    assert not session.server.scoring().payload(LastTwo())  # one iterate, no mean
    play(session, 1)
    second, server = session.server.shared, session.server
    mean = {
        k: (first[k].double() + v.double()).div(2).float() if k in server.parameters else v
        for k, v in second.items()
    }
    x, _ = session.federation.unseen.test.take(torch.arange(8))
    load(server.net, second)
    found = server.method.predict(server.net.eval(), server.scoring(), x)
    last = server.net(x).logits
    load(server.net, mean)
    torch.testing.assert_close(found, server.net(x).logits, rtol=1e-3, atol=1e-4)
    assert float((found - last).abs().max().detach()) > 1e-3
    assert server.broadcast("train", "dark-0").shared is second


def test_a_model_that_a_site_has_trained_is_scored_as_it_is(open_client):
    session = play(start("fedexp"), 2)
    client = open_client(session, "dark-0")
    back = session.server.method.send_scoring(session.server, "dark-0")
    scoring = Scoring(client, back, lambda name: None)
    x, _ = client.site.data.test.take(torch.arange(4))
    net = worker(session).net.eval()
    assert LastTwo().predict(net, x, scoring) is not None
    with torch.no_grad():
        net.head_module.weight.add_(0.1)
    assert LastTwo().predict(net, x, scoring) is None
