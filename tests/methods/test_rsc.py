"""Huang et al., ECCV 2020, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.loop import Batch, Step
from fedshift.core.registry import build
from fedshift.methods.rsc import SelfChallenging, challenged_rows, feature_mask
from fedshift.testing import play, start


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def reference(z, w, b, y, features, samples):
    """The loss with a linear head, whose gradient of the true score is the class's weight row."""
    mask = np.ones_like(z)
    k = round(features * z.shape[1])
    for i, label in enumerate(y):
        mask[i, np.argsort(-w[label])[:k]] = 0
    rows = np.arange(len(y))
    drop = softmax(z @ w.T + b)[rows, y] - softmax((z * mask) @ w.T + b)[rows, y]
    spared = np.argsort(-drop)[round(samples * len(y)) :]
    mask[spared] = 1
    return -np.log(softmax((z * mask) @ w.T + b)[rows, y]).mean()


@pytest.fixture
def visit(open_client):
    client = open_client(start("rsc"), "dark-0")
    x, y = client.site.data.train.take(torch.arange(9))
    return client, Batch(x, y)


@pytest.mark.parametrize(("features", "samples"), [(1 / 3, 1 / 3), (0.5, 1.0), (0.25, 0.5)])
def test_the_loss_is_that_of_the_features_without_the_class_s_largest_weights(
    visit, features, samples
):
    client, batch = visit
    out = client.net(batch.x)
    part = SelfChallenging(features=features, samples=samples)
    found = part.task_loss(client, Step(batch, out, "model"))
    head = client.net.head_module
    args = (t.detach().double().numpy() for t in (out.features, head.weight, head.bias))
    expected = reference(*args, batch.y.numpy(), features, samples)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


def test_masks_mute_the_largest_gradients_of_each_row():
    g = torch.tensor([[3.0, -9.0, 1.0, 2.0], [0.0, 4.0, 5.0, -1.0]])
    assert feature_mask(g, 0.5).tolist() == [[0, 1, 1, 0], [1, 0, 0, 1]]
    assert feature_mask(g, 0.0).tolist() == [[1] * 4] * 2


def test_rows_whose_confidence_falls_most_are_challenged():
    assert challenged_rows(torch.tensor([0.1, 0.5, -0.2, 0.3]), 0.5).tolist() == [1, 3]


@pytest.mark.parametrize("setting", ["features", "samples"])
def test_with_nothing_muted_it_is_fedavg(same, setting):
    plain, found = play(start("fedavg"), 2), play(start(build("rsc", **{setting: 0.0})), 2)
    same(plain.server.shared, found.server.shared)


def test_muted_features_get_no_gradient(visit):
    client, batch = visit
    out = client.net(batch.x)
    out.features.retain_grad()
    SelfChallenging(features=0.5, samples=1.0).task_loss(client, Step(batch, out, "m")).backward()
    assert (out.features.grad == 0).sum(1).tolist() == [out.features.shape[1] // 2] * 9


def test_soft_labels_of_one_class_are_that_class(visit):
    client, batch = visit
    out = client.net(batch.x)
    soft = batch.replace(y=torch.eye(4)[batch.y])
    hard, mixed = (SelfChallenging().task_loss(client, Step(b, out, "m")) for b in (batch, soft))
    assert float(hard.detach()) == pytest.approx(float(mixed.detach()), rel=1e-5)
