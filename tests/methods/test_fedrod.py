"""Chen and Chao, ICLR 2022."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.data.dealing.partitions import PerDomain
from fedshift.engine.round import exchange
from fedshift.methods.fedrod import PersonalHead, balanced
from fedshift.testing import play, start

NAME = PersonalHead().name
EVEN = {"partition": PerDomain(clients_per_domain=1, samples_per_client=8)}
FULL = {"steps": 1, "batch_size": 64}


def softmax(z):
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def test_the_gradient_of_the_balanced_softmax_weighs_classes_by_their_counts():
    z = torch.tensor([[0.3, -1.0, 2.0], [0.1, 0.2, 0.3]], requires_grad=True)
    n, y = np.array([8.0, 1.0, 3.0]), np.array([2, 0])
    F.cross_entropy(balanced(z, torch.tensor(n)), torch.tensor(y)).backward()
    p = n * np.exp(z.detach().numpy())
    p = p / p.sum(1, keepdims=True)
    p[np.arange(2), y] -= 1
    np.testing.assert_allclose(z.grad.numpy(), p / 2, rtol=1e-5)


@pytest.mark.parametrize("y", [torch.tensor([0, 0]), torch.tensor([[1.0, 0, 0], [0.4, 0.6, 0]])])
def test_a_class_without_samples_has_no_say(y):
    """Class 2 does not occur: hard and soft labels give the loss of the first two classes."""
    z = torch.tensor([[0.3, -1.0, 9.0], [0.1, 0.2, 5.0]], requires_grad=True)
    loss = F.cross_entropy(balanced(z, torch.tensor([4, 4, 0])), y)
    short = y[:, :2] if y.dim() == 2 else y
    torch.testing.assert_close(loss, F.cross_entropy(z[:, :2], short))
    loss.backward()
    assert bool((z.grad[:, 2] == 0).all())


def test_with_equal_class_counts_the_shared_model_is_fedavg():
    fedavg, fedrod = (
        play(start("fedavg", **EVEN, **FULL), 1),
        play(start("fedrod", **EVEN, **FULL), 1),
    )
    for site in fedavg.federation.sites.values():
        assert len(set(site.data.train.labels.bincount().tolist())) == 1
    for key, value in fedavg.server.shared.items():
        torch.testing.assert_close(fedrod.server.shared[key], value, rtol=1e-4, atol=1e-6)


def test_the_personal_head_changes_nothing_of_the_shared_model(same):
    both, alone = play(start("fedrod")), play(start("fedrod - personal-head"))
    same(both.server.shared, alone.server.shared)
    assert not any(m.payload or m.personal for m in both.transport.seen)


def test_the_first_step_of_the_personal_head_is_that_of_softmax_regression(state_of):
    """From zero: W = -lr (softmax(g) - y)' f / n, with g and f of the first model in train mode."""
    session = start("fedrod", **FULL)
    net = session.server.net
    play(session, 1)
    net.load_state_dict(session.server.initial)
    net.train()
    data = session.federation.sites["dark-1"].data.train
    x, y = data.take(torch.arange(len(data)))
    with torch.no_grad():
        out = net(x)
    p = softmax(out.logits.numpy().astype(np.float64))
    p[np.arange(len(y)), y.numpy()] -= 1
    kept = state_of(session, "dark-1", NAME)
    weight = -0.05 * p.T @ out.features.numpy() / len(y)
    np.testing.assert_allclose(kept["weight"].numpy(), weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(kept["bias"].numpy(), -0.05 * p.mean(0), rtol=1e-4, atol=1e-6)


def test_a_site_is_scored_with_both_heads_and_the_rest_with_the_shared_one(state_of):
    session = play(start("fedrod"), 2)
    server, net = session.server, session.server.net
    clients = sorted(server.roster)
    scored = list(exchange(server, session.transport, "score", clients, session.record))
    net.load_state_dict(server.shared)
    net.eval()
    for update in scored:
        x, y = session.federation.sites[update.client].data.test.take(torch.arange(16))
        kept = state_of(session, update.client, NAME)
        with torch.no_grad():
            out = net(x)
            logits = out.logits + out.features @ kept["weight"].T + kept["bias"]
            loss = float(F.cross_entropy(logits, y, reduction="sum"))
        assert update.metrics["test/loss"] == pytest.approx(loss, rel=1e-5)
    x, _ = session.federation.unseen.test.take(torch.arange(8))
    assert torch.equal(server.method.predict(net, server.scoring(), x), net(x).logits)


def test_mixed_samples_are_taken():
    play(start("fedrod + mixup"), 2)


def test_the_shared_head_moves_by_the_gradient_of_the_balanced_softmax(replies):
    """One full-batch step: b <- b - lr mean(softmax(z + log n) - y)."""
    session = start("fedrod", **FULL)
    net = session.server.net
    play(session, 1)
    (update,) = (u for u in replies(session, 1) if u.client == "dark-0")
    net.load_state_dict(session.server.initial)
    net.train()
    data = session.federation.sites["dark-0"].data.train
    x, y = data.take(torch.arange(len(data)))
    n = np.bincount(y.numpy(), minlength=4)
    assert np.ptp(n) > 0
    with torch.no_grad():
        p = softmax(net(x).logits.numpy() + np.log(n))
    p[np.arange(len(y)), y.numpy()] -= 1
    bias = session.server.initial["head.bias"].numpy() - 0.05 * p.mean(0)
    np.testing.assert_allclose(update.shared["head.bias"].numpy(), bias, rtol=1e-4, atol=1e-6)
