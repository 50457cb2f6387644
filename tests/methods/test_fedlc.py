"""Zhang et al., ICML 2022."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedshift.core.loop import Batch, Step
from fedshift.core.method import Method
from fedshift.core.net import Output
from fedshift.core.objective import CLASSIFICATION
from fedshift.methods.fedlc import LogitCalibration, calibrated
from fedshift.testing import play, start

COUNTS = [16, 0, 1, 81]
LABELS = torch.arange(4).repeat_interleave(torch.tensor(COUNTS))
Z = torch.tensor([[0.3, 2.0, -1.0, 0.7], [1.5, -0.2, 0.4, 0.1]], dtype=torch.float64)


def loss_of(part, y, z=Z):
    """The part's loss at a client whose training labels are LABELS."""
    samples = SimpleNamespace(train=SimpleNamespace(labels=LABELS))
    client = SimpleNamespace(
        site=SimpleNamespace(data=samples),
        classes=4,
        scratch=defaultdict(dict),
        task=CLASSIFICATION,
    )
    part.begin(client)
    return part.task_loss(client, Step(Batch(torch.zeros(2, 1), y), Output(z, z, {}, {}), "model"))


def by_hand(z, y, tau):
    """-sum_c y_c log e^{z_c - tau n_c^{-1/4}} / sum_d, over the three classes with samples."""
    held, n = [0, 2, 3], np.array([16.0, 1.0, 81.0])
    shifted = np.asarray(z)[:, held] - tau * n ** (-1 / 4)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return -(np.asarray(y)[:, held] * logs).sum(1).mean()


def test_with_zero_tau_fedlc_is_fedavg(same):
    plain, none = play(start("fedavg"), 2), play(start(Method((LogitCalibration(0.0),))), 2)
    same(plain.server.shared, none.server.shared)


@pytest.mark.parametrize("tau", [1.0, 0.4])
def test_the_loss_is_the_calibrated_cross_entropy(tau):
    y = torch.tensor([3, 2])
    expected = by_hand(Z, np.eye(4)[[3, 2]], tau)
    assert float(loss_of(LogitCalibration(tau), y)) == pytest.approx(expected, rel=1e-6)


def test_a_rare_class_has_the_larger_margin():
    """n = 1, 16, 81: the logits fall by 1, 1/2 and 1/3."""
    moved = calibrated(torch.zeros(1, 4), torch.tensor(COUNTS), 1.0)[0]
    np.testing.assert_allclose(moved[[2, 0, 3]].numpy(), [-1.0, -1 / 2, -1 / 3], rtol=1e-6)


def test_equal_counts_leave_the_probabilities_of_the_softmax():
    moved = calibrated(Z, torch.full((4,), 7), 1.0).softmax(1)
    np.testing.assert_allclose(moved.numpy(), Z.softmax(1).numpy(), rtol=1e-6)


def test_a_class_without_samples_has_no_probability_and_no_gradient():
    z = Z.clone().requires_grad_()
    loss_of(LogitCalibration(), torch.tensor([3, 2]), z).backward()
    assert z.grad[:, 1].tolist() == [0.0, 0.0]
    assert bool((z.grad[:, [0, 2, 3]] != 0).all())


def test_soft_targets_are_taken_and_lose_what_is_on_missing_classes():
    y = torch.tensor([[0.5, 0.0, 0.2, 0.3], [0.8, 0.0, 0.2, 0.0]], dtype=torch.float64)
    assert float(loss_of(LogitCalibration(), y)) == pytest.approx(by_hand(Z, y, 1.0), rel=1e-6)
    smoothed = 0.9 * y + 0.1 * torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert float(loss_of(LogitCalibration(), smoothed)) == pytest.approx(
        by_hand(Z, y, 1.0), rel=1e-6
    )
