"""Sun et al., ACML 2022: each equation against NumPy, written from the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.methods.fedka.equations import (
    agreement,
    coefficient,
    domain_loss,
    majority,
    more_than_half,
    progress,
)
from fedshift.methods.shared.mmd import bandwidths, mk_mmd, squared_distances
from fedshift.methods.shared.reversal import reverse


@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_the_coefficient_grows_from_0_as_section_3_2_4_says(gamma):
    found = [
        coefficient(progress(b, 4, round_=r, rounds=3), gamma) for r in range(3) for b in range(4)
    ]
    p = np.arange(12) / 12
    assert found == pytest.approx(list(2 / (1 + np.exp(-gamma * p)) - 1), abs=1e-15)
    assert found[0] == 0.0


def test_gamma_0_is_lambda_0_and_progress_ends_at_1():
    assert all(coefficient(p, 0.0) == 0.0 for p in np.linspace(0, 1, 7))
    assert progress(9, 4, round_=2, rounds=3) == 1.0  # more batches than the budget


def nll(logits, label):
    """-log softmax(logits)[label], mean over rows."""
    e = np.exp(logits)
    return -np.log(e[:, label] / e.sum(1)).mean()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_the_domain_loss_is_equation_2(rng):
    source, target = rng.normal(size=(5, 2)), rng.normal(size=(7, 2))
    found = domain_loss(torch.from_numpy(source), torch.from_numpy(target))
    assert float(found) == pytest.approx(nll(source, 0) + nll(target, 1), rel=1e-12)


def test_the_reversal_is_the_identity_forwards(rng):
    x = torch.from_numpy(rng.normal(size=(4, 3)))
    assert torch.equal(reverse(x, 0.3), x)


@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
def test_f_d_descends_and_the_encoder_climbs_by_lambda(rng, lam):
    """d NLL(0) / d logits = softmax - (1, 0), through f_d(h) = h W^T; h is reversed."""
    h, w = rng.normal(size=(6, 3)), rng.normal(size=(2, 3))
    features, weight = (torch.from_numpy(v).requires_grad_() for v in (h, w))
    domain_loss(reverse(features, lam) @ weight.T, torch.zeros(1, 2).double()).backward()
    e = np.exp(h @ w.T)
    slope = (e / e.sum(1, keepdims=True) - np.array([1.0, 0.0])) / len(h)
    np.testing.assert_allclose(weight.grad.numpy(), slope.T @ h, rtol=1e-10)
    np.testing.assert_allclose(features.grad.numpy(), -lam * slope @ w, rtol=1e-10, atol=1e-15)


def widths_of(source, target):
    """The mean squared distance of two different rows, times 1/4, 1/2, 1, 2, 4."""
    z = np.concatenate([source, target])
    n = len(z)
    total = sum(((a - b) ** 2).sum() for a in z for b in z)
    return [total / (n * n - n) * s for s in (0.25, 0.5, 1.0, 2.0, 4.0)]


def mmd(source, target, widths):
    """Eq. 5 and 6: mean over kernels of |mean phi(s) - mean phi(t)|^2, expanded pair by pair."""

    def mean_kernel(a, b, width):
        return np.mean([[np.exp(-((u - v) ** 2).sum() / width) for v in b] for u in a])

    per_kernel = [
        mean_kernel(source, source, w)
        + mean_kernel(target, target, w)
        - 2 * mean_kernel(source, target, w)
        for w in widths
    ]
    return np.mean(per_kernel)


@pytest.mark.parametrize("m", [4, 6])
def test_the_matching_is_the_mean_of_equation_5_over_five_kernels(rng, m):
    source, target = rng.normal(size=(4, 3)), 0.5 + rng.normal(size=(m, 3))
    found = mk_mmd(torch.from_numpy(source), torch.from_numpy(target))
    assert float(found) == pytest.approx(mmd(source, target, widths_of(source, target)), rel=1e-9)


def test_the_bandwidths_are_powers_of_two_around_the_mean_distance(rng):
    source, target = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    distances = squared_distances(torch.from_numpy(np.concatenate([source, target])))
    found = bandwidths(distances, 5, 2.0)
    np.testing.assert_allclose(found.numpy(), widths_of(source, target), rtol=1e-12)
    np.testing.assert_allclose(bandwidths(distances, 1, 2.0)[0], found[2], rtol=1e-12)
    assert bandwidths(distances, 3, 3.0)[2] == pytest.approx(9 * bandwidths(distances, 3, 3.0)[0])


def test_the_gradient_of_the_matching_holds_the_bandwidths(rng):
    source, target = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    features = torch.from_numpy(source).requires_grad_()
    mk_mmd(features, torch.from_numpy(target)).backward()
    widths, h = widths_of(source, target), 1e-5
    for i, j in np.ndindex(source.shape):
        up, down = source.copy(), source.copy()
        up[i, j] += h
        down[i, j] -= h
        slope = (mmd(up, target, widths) - mmd(down, target, widths)) / (2 * h)
        assert float(features.grad[i, j]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_equal_samples_match_and_a_descent_step_brings_others_nearer(rng):
    source = torch.from_numpy(rng.normal(size=(8, 3))).requires_grad_()
    target = torch.from_numpy(2 + rng.normal(size=(8, 3)))
    assert float(mk_mmd(source.detach(), source.detach())) == pytest.approx(0.0, abs=1e-12)
    before = mk_mmd(source, target)
    before.backward()
    assert float(mk_mmd(source.detach() - source.grad, target)) < float(before.detach())


def test_features_that_are_all_equal_match_without_dividing_by_zero():
    same = torch.ones(4, 3, requires_grad=True)
    found = mk_mmd(same, torch.ones(4, 3))
    found.backward()
    assert float(found.detach()) == 0.0
    assert bool(same.grad.isfinite().all())


def test_the_majority_is_equation_10(rng):
    ballots = rng.integers(0, 4, (5, 200))
    found = majority(torch.from_numpy(ballots), 4, torch.Generator().manual_seed(1)).numpy()
    for i, label in enumerate(found):
        votes = [(ballots[:, i] == c).sum() for c in range(4)]
        assert votes[label] == max(votes)


def test_ties_are_drawn_evenly_among_the_candidates():
    ballots = torch.tensor([[0], [3], [0], [3], [1]]).expand(5, 4000)
    found = majority(ballots, 4, torch.Generator().manual_seed(1))
    assert found.unique().tolist() == [0, 3]
    assert float((found == 0).float().mean()) == pytest.approx(0.5, abs=0.04)
    again = majority(ballots, 4, torch.Generator().manual_seed(1))
    assert torch.equal(found, again)
    assert not torch.equal(found, majority(ballots, 4, torch.Generator().manual_seed(2)))


def test_agreement_is_fleiss_kappa_of_his_example():
    """Fleiss 1971 as in textbooks: 14 raters, 10 subjects, 5 categories, kappa 0.210."""
    table = np.array(
        [
            [0, 0, 0, 0, 14],
            [0, 2, 6, 4, 2],
            [0, 0, 3, 5, 6],
            [0, 3, 9, 2, 0],
            [2, 2, 8, 1, 1],
            [7, 7, 0, 0, 0],
            [3, 2, 6, 3, 0],
            [2, 5, 3, 2, 2],
            [6, 5, 2, 1, 0],
            [0, 2, 2, 3, 7],
        ]
    )
    ballots = np.stack([np.repeat(np.arange(5), row) for row in table], axis=1)  # (14, 10)
    assert agreement(torch.from_numpy(ballots), 5) == pytest.approx(0.210, abs=5e-4)


def test_agreement_of_one_voter_or_on_one_class_tells_nothing():
    assert agreement(torch.tensor([[0, 1, 2]]), 3) == 0.0
    assert agreement(torch.tensor([[1, 1], [1, 1]]), 3) == 0.0
    assert agreement(torch.tensor([[0, 1], [1, 0]]), 2) < 0


def test_half_of_the_voters_is_no_strict_majority():
    ballots = torch.tensor([[0, 0, 2], [0, 1, 2], [1, 2, 2], [1, 0, 0]])
    assert more_than_half(ballots, 3).tolist() == [False, False, True]
