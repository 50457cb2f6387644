"""Deng et al., 2020, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base import tree
from fedshift.core.registry import build
from fedshift.engine.round import exchange
from fedshift.methods.apfl import Mixture, mixture
from fedshift.testing import play, start

NAME = Mixture().name
LINEAR = {"backbone": "linear", "backbone_options": {}, "batch_size": 64, "epochs": 3, "lr": 0.002}


def softmax_gradient(w, b, x, y):
    """Mean gradient of the cross-entropy of x W' + b, in NumPy."""
    z = x @ w.T + b
    p = np.exp(z - z.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p.T @ x / len(y), p.mean(0)


def numpy_visit(w, v, a, x, y, lr, learn):
    """Three full-batch steps of Algorithm 1; each model is a list [weight, bias]."""
    for _ in range(3):
        g = softmax_gradient(*[a * vi + (1 - a) * wi for vi, wi in zip(v, w, strict=True)], x, y)
        slope = sum(((vi - wi) * gi).sum() for vi, wi, gi in zip(v, w, g, strict=True))
        v = [vi - lr * a * gi for vi, gi in zip(v, g, strict=True)]
        w = [wi - lr * gi for wi, gi in zip(w, softmax_gradient(*w, x, y), strict=True)]
        a = min(max(a - lr * slope, 0.0), 1.0) if learn else a
    return w, v, a


@pytest.mark.parametrize("learn", [True, False])
def test_two_rounds_follow_algorithm_1(state_of, learn):
    session = start(build("apfl", alpha=0.3, learn=learn), **LINEAR)
    site = session.federation.sites["dark-0"]
    x, y = (t.numpy() for t in site.data.train.take(torch.arange(len(site.data.train))))
    x = x.reshape(len(x), -1).astype(np.float64)
    keys, v, a = ("head.weight", "head.bias"), None, 0.3
    for _ in range(2):
        w = [session.server.shared[k].numpy().astype(np.float64) for k in keys]
        _, v, a = numpy_visit(w, v or w, a, x, y, 0.002, learn)
        play(session, 1)
    kept = state_of(session, "dark-0", NAME)
    assert float(kept["a"]) == pytest.approx(a, rel=1e-4)
    assert (abs(a - 0.3) > 1e-4) == learn  # far enough to tell
    for key, value in zip(keys, v, strict=True):
        np.testing.assert_allclose(kept[f"v/{key}"].numpy(), value, rtol=1e-4, atol=1e-5)


def test_the_shared_model_is_fedavg(same):
    fedavg, apfl = play(start("fedavg")), play(start("apfl"))
    same(fedavg.server.shared, apfl.server.shared)


def test_with_a_fixed_at_1_the_own_model_is_local_training(same, state_of):
    local, apfl = play(start("local")), play(start(build("apfl", alpha=1.0, learn=False)))
    for client in local.server.roster:
        same(state_of(local, client, "net"), tree.under("v", state_of(apfl, client, NAME)))


def test_with_a_fixed_at_0_the_own_model_rests_and_the_shared_one_is_scored(state_of):
    session = start(build("apfl", alpha=0.0, learn=False), backbone_options={"norm": "group"})
    first = session.server.shared
    play(session, 2)
    kept = tree.under("v", state_of(session, "dark-0", NAME))
    assert all(torch.equal(kept[k], first[k]) for k in first)
    plain = play(start("fedavg", backbone_options={"norm": "group"}), 2)
    scores = [
        {
            u.client: u.metrics["test/loss"]
            for u in exchange(s.server, s.transport, "score", sorted(s.server.roster), s.record)
        }
        for s in (session, plain)
    ]
    assert scores[0] == scores[1]


def test_the_gradients_of_the_mixture_are_a_g_and_the_product_of_v_less_w_with_g():
    v, w = torch.tensor([3.0, -1.0], requires_grad=True), torch.tensor([1.0, 4.0])
    a = torch.tensor(0.25, requires_grad=True)
    mixed = mixture({"k": v, "buffer": w}, {"k": w}, a)
    torch.testing.assert_close(mixed["k"], torch.tensor([1.5, 2.75]))
    assert mixed["buffer"] is w  # in one model only
    g = torch.tensor([2.0, 10.0])
    (mixed["k"] * g).sum().backward()
    torch.testing.assert_close(v.grad, 0.25 * g)
    assert float(a.grad) == pytest.approx(2 * 2 - 5 * 10)


def test_a_stays_between_0_and_1(state_of):
    session = play(start("apfl", lr=0.5, rounds=2), 2)
    for client in session.server.roster:
        assert 0 <= float(state_of(session, client, NAME)["a"]) <= 1


def test_the_mixture_with_the_new_shared_model_is_scored(state_of):
    session = play(start("apfl", **LINEAR), 2)
    server = session.server
    for update in exchange(
        server, session.transport, "score", sorted(server.roster), session.record
    ):
        kept, test = state_of(session, update.client, NAME), session.federation.sites[update.client]
        x, y = test.data.test.take(torch.arange(16))
        a = float(kept["a"])
        w, b = (
            a * kept[f"v/{k}"] + (1 - a) * server.shared[k] for k in ("head.weight", "head.bias")
        )
        loss = F.cross_entropy(x.flatten(1) @ w.T + b, y, reduction="sum")
        assert update.metrics["test/loss"] == pytest.approx(float(loss), rel=1e-4)


def test_the_own_model_starts_at_the_first_received_one(state_of):
    """With a fixed at 0 it stays there; two of four clients take part in a round."""
    session = play(start(build("apfl", alpha=0.0, learn=False), clients_per_round=2))
    first = {}
    for message in session.transport.seen:
        if message.task == "train" and not hasattr(message, "steps"):
            first.setdefault(message.client, message)
    assert {m.round for m in first.values()} > {1}
    for client, message in first.items():
        kept = state_of(session, client, NAME)
        assert torch.equal(kept["v/head.weight"], message.shared["head.weight"])
