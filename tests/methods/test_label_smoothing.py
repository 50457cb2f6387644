"""Szegedy et al., CVPR 2016, Section 7."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.core.loop import Batch
from fedshift.core.method import Method
from fedshift.methods.label_smoothing import LabelSmoothing, smoothed
from fedshift.testing import play, start

Y = torch.tensor([2, 0, 1])


def test_with_zero_epsilon_it_is_fedavg():
    """Up to the last bit: cross-entropy of indices and of one-hot targets are two kernels."""
    plain, none = play(start("fedavg"), 2), play(start(Method((LabelSmoothing(0.0),))), 2)
    for key, value in plain.server.shared.items():
        torch.testing.assert_close(none.server.shared[key], value, rtol=1e-4, atol=1e-5)


def test_the_targets_are_those_of_the_paper():
    expected = 0.7 * np.eye(4)[[2, 0, 1]] + 0.3 / 4
    np.testing.assert_allclose(smoothed(Y, 4, 0.3).numpy(), expected, rtol=1e-6)


def test_the_targets_of_a_batch_are_smoothed():
    batch = LabelSmoothing(0.3).batch(SimpleNamespace(classes=4), Batch(torch.ones(3, 1), Y))
    np.testing.assert_allclose(batch.y[1].numpy(), [0.775, 0.075, 0.075, 0.075], rtol=1e-6)


def test_the_loss_is_torchs_own_smoothed_cross_entropy():
    z = torch.tensor([[0.3, 2.0, -1.0], [1.5, -0.2, 0.4], [0.0, 0.1, 0.2]])
    found = F.cross_entropy(z, smoothed(Y, 3, 0.1))
    assert float(found) == pytest.approx(float(F.cross_entropy(z, Y, label_smoothing=0.1)))


def test_smoothing_and_mixing_commute():
    mixed = 0.3 * F.one_hot(Y, 3).double() + 0.7 * F.one_hot(Y.flip(0), 3).double()
    first = 0.3 * smoothed(Y, 3, 0.2) + 0.7 * smoothed(Y.flip(0), 3, 0.2)
    torch.testing.assert_close(smoothed(mixed, 3, 0.2), first.double(), rtol=1e-6, atol=1e-7)


def test_it_stacks_on_methods_that_replace_the_loss():
    for method in ("fedlc + label-smoothing", "fedrs + mixup + label-smoothing"):
        session = play(start(method), 1)
        assert all(bool(v.isfinite().all()) for v in session.server.shared.values())
