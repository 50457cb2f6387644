"""Khosla et al., NeurIPS 2020: supervised contrast over given pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.methods.shared.contrast import agreement, cosines, not_itself, pair_contrast

Y = np.array([0, 1, 0, 2, 1, 0])
TAU = 0.3


def supcon(z, y, tau):
    """Per anchor, by loops."""
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    s = unit @ unit.T / tau
    rows = range(len(z))
    out = np.zeros(len(z))
    for i in rows:
        others = [j for j in rows if j != i]
        same = [j for j in others if y[j] == y[i]]
        whole = np.log(sum(np.exp(s[i, j]) for j in others))
        out[i] = -np.mean([s[i, j] - whole for j in same]) if same else 0.0
    return out


@pytest.fixture
def given():
    z = np.random.default_rng(0).normal(size=(len(Y), 4))
    return z, torch.from_numpy(z), F.one_hot(torch.from_numpy(Y), 3).double()


def within(z, shares):
    mask = not_itself(len(z), len(z))
    return pair_contrast(cosines(z, z) / TAU, agreement(shares, shares) * mask, mask)


def test_the_contrast_is_the_mean_over_the_samples_of_the_class(given):
    z, z_, shares = given
    np.testing.assert_allclose(within(z_, shares).numpy(), supcon(z, Y, TAU), rtol=1e-9)


def test_an_anchor_that_is_alone_in_its_class_adds_nothing_and_has_no_pull(given):
    _, z_, shares = given
    z_.requires_grad_()
    term = within(z_, shares)[3]
    (gradient,) = torch.autograd.grad(term, z_)
    assert float(term.detach()) == 0.0
    assert not gradient.any()


def test_equal_features_give_the_logarithm_of_the_number_of_others():
    z, shares = torch.ones(5, 3), torch.ones(5, 1)
    np.testing.assert_allclose(within(z, shares).numpy(), np.full(5, np.log(4)), rtol=1e-6)


def test_a_soft_label_attracts_each_of_its_classes_by_its_share(given):
    _, z_, shares = given
    mixed = shares.clone()
    mixed[0] = torch.tensor([0.25, 0.75, 0.0])
    mask = not_itself(len(Y), len(Y))
    s = cosines(z_, z_) / TAU
    logs = s - s.masked_fill(~mask, -np.inf).logsumexp(1, keepdim=True)
    a, b = logs[0, [2, 5]].sum(), logs[0, [1, 4]].sum()
    found = within(z_, mixed)[0]
    assert float(found) == pytest.approx(float(-(0.25 * a + 0.75 * b) / 2))
