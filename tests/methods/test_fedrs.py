"""Li and Zhan, KDD 2021."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch

from fedshift.core.loop import Batch, Step
from fedshift.core.method import Method
from fedshift.core.net import Output
from fedshift.core.objective import CLASSIFICATION
from fedshift.methods.fedrs import RestrictedSoftmax
from fedshift.testing import play, start

Z = torch.tensor([[0.3, 2.0, -1.0, 0.7], [1.5, -0.2, 0.4, 0.1]], dtype=torch.float64)


def loss_of(alpha, y, z):
    """The part's loss at a client that holds the classes 0 and 3 only."""
    samples = SimpleNamespace(train=SimpleNamespace(labels=torch.tensor([3, 0, 0, 3, 0])))
    client = SimpleNamespace(
        site=SimpleNamespace(data=samples),
        classes=4,
        scratch=defaultdict(dict),
        task=CLASSIFICATION,
    )
    part = RestrictedSoftmax(alpha)
    part.begin(client)
    return part.task_loss(client, Step(Batch(torch.zeros(2, 1), y), Output(z, z, {}, {}), "model"))


def test_with_alpha_one_fedrs_is_fedavg(same):
    plain, whole = play(start("fedavg"), 2), play(start(Method((RestrictedSoftmax(1.0),))), 2)
    same(plain.server.shared, whole.server.shared)


def test_where_no_class_is_missing_fedrs_is_fedavg(same):
    session = start("fedrs")
    for site in session.federation.sites.values():
        assert set(site.data.train.labels.tolist()) == {0, 1, 2, 3}
    same(play(start("fedavg"), 2).server.shared, play(session, 2).server.shared)


def test_scores_of_missing_classes_are_multiplied_by_alpha():
    scaled = Z.numpy() * [1.0, 0.3, 0.3, 1.0]
    logs = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
    found = loss_of(0.3, torch.tensor([3, 0]), Z)
    np.testing.assert_allclose(float(found), -(logs[0, 3] + logs[1, 0]) / 2, rtol=1e-6)


def test_missing_classes_are_pushed_away_alpha_times_as_strongly():
    """d loss / d z_c = alpha p_c / B for a missing class c, p of the restricted softmax."""
    z = Z.clone().requires_grad_()
    loss_of(0.3, torch.tensor([3, 0]), z).backward()
    e = np.exp(Z.numpy() * [1.0, 0.3, 0.3, 1.0])
    p = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(z.grad[:, 1:3].numpy(), 0.3 * p[:, 1:3] / 2, rtol=1e-5)


def test_with_alpha_zero_missing_classes_are_not_pushed_at_all():
    z = Z.clone().requires_grad_()
    loss_of(0.0, torch.tensor([3, 0]), z).backward()
    assert z.grad[:, 1:3].abs().max() == 0.0


def test_soft_targets_are_taken():
    y = torch.tensor([[0.4, 0.0, 0.0, 0.6], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    scaled = Z.numpy() * [1.0, 0.5, 0.5, 1.0]
    logs = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
    np.testing.assert_allclose(
        float(loss_of(0.5, y, Z)), -(y.numpy() * logs).sum(1).mean(), rtol=1e-6
    )
