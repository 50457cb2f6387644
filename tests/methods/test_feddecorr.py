"""Shi et al., ICLR 2023."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedshift.core.method import Method
from fedshift.methods.feddecorr import Decorrelation, decorrelation
from fedshift.testing import play, start

Z = torch.tensor(
    np.random.default_rng(3).normal(size=(6, 3)) @ np.array([[1, 2, 0], [0, 1, 1], [3, 0, 1]])
)


def term(part, z):
    return part.loss(None, SimpleNamespace(out=SimpleNamespace(features=z)))


def test_with_zero_beta_feddecorr_is_fedavg(same):
    plain, none = play(start("fedavg"), 2), play(start(Method((Decorrelation(0.0),))), 2)
    same(plain.server.shared, none.server.shared)


def test_the_term_is_the_squared_norm_of_the_correlation_matrix_over_d_squared():
    expected = (np.corrcoef(Z.numpy(), rowvar=False) ** 2).sum() / 3**2
    assert float(decorrelation(Z)) == pytest.approx(expected, rel=1e-6)
    assert float(term(Decorrelation(0.4), Z)) == pytest.approx(0.4 * expected, rel=1e-6)


def test_uncorrelated_features_reach_the_least_value_one_over_d_and_equal_ones_the_most():
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    assert float(decorrelation(signs)) == pytest.approx(1 / 2)
    assert float(decorrelation(signs[:, [0, 0]])) == pytest.approx(1.0)


def test_scale_and_offset_of_a_feature_have_no_say():
    moved = Z * torch.tensor([2.0, 0.5, 7.0]) + torch.tensor([1.0, -3.0, 0.0])
    assert float(decorrelation(moved)) == pytest.approx(float(decorrelation(Z)), rel=1e-6)


def test_a_constant_feature_gives_neither_value_nor_infinite_gradient():
    z = torch.cat([Z, torch.zeros(6, 1)], 1).requires_grad_()
    found = decorrelation(z)
    found.backward()
    expected = (np.corrcoef(Z.numpy(), rowvar=False) ** 2).sum() / 4**2
    assert float(found.detach()) == pytest.approx(expected, rel=1e-6)
    assert bool(z.grad.isfinite().all())


def test_the_released_scale_is_the_off_diagonal_mean_times_the_batch():
    squares = np.corrcoef(Z.numpy(), rowvar=False) ** 2
    off = (squares.sum() - 3) / 6
    found = float(term(Decorrelation(0.1, times_batch=True), Z))
    assert found == pytest.approx(0.1 * off * 5**2 / 6, rel=1e-6)


def test_a_batch_of_one_sample_adds_nothing():
    assert term(Decorrelation(), Z[:1]) is None
