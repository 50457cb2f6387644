"""Prototypes and personal heads among the examples: FedProto and FedRoD."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp, softmax

from fedshift.core.method import Method
from fedshift.core.net import load
from fedshift.engine.round import exchange
from fedshift.testing import play, start

RNG = np.random.default_rng(0)
SMALL = {"rounds": 2, "steps": 3}
LOGITS = RNG.normal(size=(6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 3, 1, 1])


def nll(logits, y):
    """Mean cross-entropy, by SciPy."""
    return -log_softmax(np.asarray(logits, dtype=np.float64), axis=1)[np.arange(len(y)), y].mean()


# FedProto


def test_fedproto_without_the_distance_is_local_training(same, state_of):
    ours, local = play(start("example-fedproto[lam=0]", **SMALL)), play(start("local", **SMALL))
    for client in local.server.roster:
        same(state_of(ours, client, "net"), state_of(local, client, "net"))


def features_of(session, client, split, state_of):
    """Features and labels at a client under its own net, in NumPy."""
    net, samples = session.server.net, getattr(session.federation.sites[client].data, split)
    load(net, state_of(session, client, "net"))
    x, y = samples.take(torch.arange(len(samples)))
    with torch.no_grad():
        return net.eval()(x).features.numpy(), y.numpy()


def test_prototypes_are_the_class_means_over_all_clients(state_of, part):
    session = play(start("example-fedproto", **SMALL))
    own = [features_of(session, c, "train", state_of) for c in sorted(session.server.roster)]
    z, y = (np.concatenate(rows) for rows in zip(*own, strict=True))
    expected = np.stack([z[y == c].mean(0) for c in range(4)])
    told = session.server.state[part("example-fedproto").name]
    np.testing.assert_allclose(told["means"].numpy(), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(told["counts"].numpy(), np.bincount(y, minlength=4))


def test_the_nearest_prototype_decides_what_a_site_reports(state_of, part):
    session = play(start("example-fedproto", **SMALL))
    server = session.server
    means = server.state[part("example-fedproto").name]["means"].numpy()
    scored = exchange(server, session.transport, "score", sorted(server.roster), session.record)
    for update in scored:
        z, y = features_of(session, update.client, "test", state_of)
        nearest = np.linalg.norm(z[:, None] - means, axis=2).argmin(1)
        assert update.metrics["test/accuracy"] == pytest.approx(100 * (nearest == y).mean())


def test_the_distance_of_fedproto_leaves_out_classes_without_a_prototype(part, stub, step_of):
    z = RNG.normal(size=(6, 3)).astype(np.float32)
    means, counts = RNG.normal(size=(4, 3)).astype(np.float32), np.array([2.0, 0.0, 1.0, 5.0])
    told = {"means": torch.from_numpy(means), "counts": torch.from_numpy(counts)}
    found = part("example-fedproto[lam=0.5]").loss(
        stub(payload=lambda _: told), step_of(LOGITS, Y, z)
    )
    gaps = ((z - means[Y]) ** 2).mean(1) * (counts[Y] > 0)
    assert float(found) == pytest.approx(0.5 * gaps.mean(), rel=1e-5)
    net = lambda x: SimpleNamespace(features=x)  # noqa: E731
    scored = part("example-fedproto").predict(
        net, torch.from_numpy(means), SimpleNamespace(payload=lambda _: told)
    )
    assert scored.argmax(1).tolist()[::2] == [0, 2]
    assert 1 not in scored.argmax(1).tolist()  # the class that nobody has


# FedRoD


def two_heads(part, stub, labels):
    ours, data = part("example-fedrod"), SimpleNamespace(labels=torch.tensor(labels))
    site = SimpleNamespace(data=SimpleNamespace(train=data))
    client = stub(site=site, classes=4, net=SimpleNamespace(shapes=lambda: {"features": (3,)}))
    return ours, client, dict(ours.begin(client))


def test_balanced_softmax_of_uniform_labels_is_cross_entropy(part, stub, step_of):
    ours, client, _ = two_heads(part, stub, [0, 1, 2, 3] * 5)
    assert float(ours.task_loss(client, step_of(LOGITS, Y))) == pytest.approx(
        nll(LOGITS, Y), rel=1e-5
    )


def test_balanced_softmax_weighs_each_class_by_its_count(part, stub, step_of):
    counts = np.array([1, 6, 2, 1])
    ours, client, _ = two_heads(part, stub, np.repeat(np.arange(4), counts).tolist())
    z = LOGITS.astype(np.float64)
    each = z[range(6), Y] + np.log(counts[Y]) - logsumexp(z, b=counts, axis=1)
    assert float(ours.task_loss(client, step_of(LOGITS, Y))) == pytest.approx(
        -each.mean(), rel=1e-5
    )


def test_the_personal_head_learns_alone(part, stub, step_of):
    """d CE / d W = mean (p - 1_y) z^T, and nothing reaches the net."""
    ours, client, head = two_heads(part, stub, [0, 1, 2, 3])
    z = RNG.normal(size=(6, 3)).astype(np.float32)
    step = step_of(torch.tensor(LOGITS, requires_grad=True), Y, torch.tensor(z, requires_grad=True))
    ours.loss(client, step).backward()
    assert step.out.logits.grad is None
    assert step.out.features.grad is None
    gap = softmax(LOGITS, axis=1) - np.eye(4)[Y]
    np.testing.assert_allclose(head["w"].grad.numpy(), gap.T @ z / 6, atol=1e-6)
    np.testing.assert_allclose(head["b"].grad.numpy(), gap.mean(0), atol=1e-6)


def test_the_shared_model_of_fedrod_does_not_see_the_personal_head(part, same):
    class GenericHead(type(part("example-fedrod"))):
        def loss(self, client, step):
            return None

    both = play(start("example-fedrod", **SMALL))
    same(both.server.shared, play(start(Method((GenericHead(),)), **SMALL)).server.shared)


def test_fedrod_scores_both_heads_at_home_and_the_generic_one_elsewhere(part, state_of):
    session = play(start("example-fedrod", **SMALL))
    server, net = session.server, session.server.net
    head = state_of(session, "dark-0", part("example-fedrod").name)
    load(net, server.shared)
    x, y = session.federation.sites["dark-0"].data.test.take(torch.arange(16))
    with torch.no_grad():
        out = net.eval()(x)
        assert torch.equal(server.method.predict(net, server.scoring(), x), out.logits)
    both = out.logits.numpy() + out.features.numpy() @ head["w"].numpy().T + head["b"].numpy()
    (scored,) = exchange(server, session.transport, "score", ["dark-0"], session.record)
    assert scored.metrics["test/nll"] == pytest.approx(nll(both, y.numpy()), rel=1e-4)
    assert abs(nll(both, y.numpy()) - nll(out.logits.numpy(), y.numpy())) > 1e-3
