"""Fallah et al., NeurIPS 2020, Algorithm 1, first-order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.core.loop import Batch
from fedshift.core.net import load
from fedshift.core.registry import build
from fedshift.engine.round import exchange
from fedshift.methods.per_fedavg import MetaStep, halves
from fedshift.testing import play, start


def test_with_zero_alpha_per_fedavg_is_fedavg_where_both_halves_are_alike(bowls, same):
    """Any batch of a quadratic gives the whole gradient, so D' does."""
    fedavg, none = play(bowls.start(), 2), play(bowls.start(MetaStep(0.0)), 2)
    same(fedavg.server.shared, none.server.shared)


def test_the_gradient_is_that_after_one_step_of_alpha(bowls, replies):
    """w <- w - lr a (w - alpha a (w - b) - b)."""
    alpha, lr = 0.2, 0.1
    session = play(bowls.start(MetaStep(alpha), lr=lr), 1)
    for update in replies(session, 1):
        a, b = (v[update.client.removesuffix("-0")] for v in (bowls.a, bowls.b))
        w = bowls.w
        for _ in range(3):
            w = w - lr * a * (w - alpha * a * (w - b) - b)
        np.testing.assert_allclose(update.shared["bowl.w"].numpy(), w, rtol=1e-5)


def test_the_two_gradients_are_of_the_two_halves_of_the_batch(open_client):
    """One step of a linear softmax classifier on D, then its gradient on D', in NumPy."""
    client = open_client(start("per-fedavg"), "dark-0")
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(5, 3)), rng.normal(size=(2, 3))
    y = np.array([0, 1, 1, 0, 1])

    def gradient(w, x, y):
        p = np.exp(x @ w.T)
        return (p / p.sum(1, keepdims=True) - np.eye(2)[y]).T @ x / len(y)

    net = torch.nn.Linear(3, 2, bias=False).double()
    net.weight.data = torch.tensor(w)
    net.weight.grad = torch.zeros(2, 3, dtype=torch.float64)  # what the loop left is replaced
    client.net = net
    client._objective = lambda batch: F.cross_entropy(net(batch.x), batch.y)
    batch = Batch(torch.tensor(x), torch.tensor(y))
    MetaStep(0.7).edit_gradients(client, type("Step", (), {"batch": batch})())
    ahead = w - 0.7 * gradient(w, x[:2], y[:2])
    np.testing.assert_allclose(net.weight.grad.numpy(), gradient(ahead, x[2:], y[2:]), rtol=1e-9)
    np.testing.assert_array_equal(net.weight.detach().numpy(), w)


def test_the_halves_share_no_sample_unless_there_is_only_one():
    first, second = halves(Batch(torch.arange(5.0)[:, None], torch.arange(5), index=3))
    assert torch.cat([first.y, second.y]).tolist() == [0, 1, 2, 3, 4]
    assert len(first.y) == 2
    assert first.index == second.index == 3
    alone = Batch(torch.ones(1, 1), torch.ones(1))
    assert halves(alone) == (alone, alone)


@pytest.mark.parametrize("protocols", [("personal",), ("personal", "personal-trained")])
def test_a_sites_model_is_scored_after_one_step_on_its_training_samples(protocols, state_of):
    """Of the received and of the trained model, each after a step of its own."""
    alpha = 0.5
    session = play(start(build("per-fedavg", alpha=alpha), protocols=protocols), 1)
    server, net = session.server, session.server.net
    replies = exchange(server, session.transport, "score", ["dark-0", "bright-1"], session.record)
    for update in list(replies):
        data = session.federation.sites[update.client].data
        models = {"": server.shared}
        if len(protocols) == 2:
            models["trained-"] = state_of(session, update.client, "trained")
        for head, entries in models.items():
            load(net, entries)
            net.eval()
            x, y = data.train.take(torch.arange(len(data.train)))
            loss = F.cross_entropy(net(x).logits, y)
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for p, g in zip(net.parameters(), gradients, strict=True):
                    p.sub_(alpha * g)
                x, y = data.test.take(torch.arange(len(data.test)))
                expected = float(F.cross_entropy(net(x).logits, y, reduction="sum"))
            assert update.metrics[f"{head}test/loss"] == pytest.approx(expected, rel=1e-4)


def test_the_model_of_all_is_scored_without_a_step():
    session = play(start("per-fedavg"), 1)
    net, server = session.server.net, session.server
    load(net, server.shared)
    x, _ = session.federation.unseen.test.take(torch.arange(8))
    net.eval()
    assert torch.equal(server.method.predict(net, server.scoring(), x), net(x).logits)
