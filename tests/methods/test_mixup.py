"""Zhang et al., ICLR 2018."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.loop import Batch
from fedshift.methods.mixup import Mixup
from fedshift.testing import start

NAME = Mixup().name


@pytest.fixture
def batch():
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return Batch(x, torch.tensor([0, 1, 2, 3, 0, 1]))


@pytest.fixture
def mixed(open_client, batch):
    """One mixed batch: ``mixed(alpha, seed, client)``."""

    def mix(alpha=5.0, seed=0, client="dark-0"):
        return Mixup(alpha).batch(open_client(start("mixup", seed=seed), client), batch)

    return mix


@pytest.mark.parametrize("seed", range(4))
def test_a_mixed_batch_is_a_convex_combination_of_pairs(mixed, batch, seed):
    """lambda is read off the labels; the inputs must then be mixed with the same lambda."""
    out = mixed(seed=seed)
    x, y, new = batch.x.numpy(), np.eye(4)[batch.y.numpy()], out.y.numpy()
    np.testing.assert_allclose(new.sum(1), 1.0, rtol=1e-6)
    assert (new >= 0).all()
    own = (new * y).sum(1)  # lambda, or 1 where the partner has the same class
    (lam,) = np.unique(own[own < 0.999].round(5))
    partners = []
    for i in range(6):
        other = (out.x[i].numpy() - lam * x[i]) / (1 - lam)
        gaps = np.abs(x - other).max((1, 2, 3))
        partners.append(int(gaps.argmin()))
        assert gaps.min() < 1e-3
        np.testing.assert_allclose(new[i], lam * y[i] + (1 - lam) * y[partners[-1]], atol=1e-5)
    assert sorted(partners) == list(range(6))  # a permutation: nobody is drawn twice


def test_other_seeds_and_clients_give_other_mixes(mixed):
    assert torch.equal(mixed().x, mixed().x)
    assert not torch.equal(mixed(seed=0).x, mixed(seed=1).x)
    assert not torch.equal(mixed(client="dark-0").x, mixed(client="dark-1").x)


def test_batches_of_one_visit_get_other_mixes(open_client, batch):
    client = open_client(start("mixup"), "dark-0")
    first, second = (Mixup(5.0).batch(client, batch) for _ in range(2))
    assert not torch.equal(first.x, second.x)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_lambda_is_beta_distributed(open_client, alpha):
    """Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)); 600 draws, three standard errors."""
    client = open_client(start("mixup"), "dark-0")
    pair = Batch(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
    draws = []
    while len(draws) < 600:
        out = Mixup(alpha).batch(client, pair)
        lam = float(out.y[0, 0])
        if float(out.x[0, 0]) > 0 or lam < 1:  # a permutation that swaps; else lambda is hidden
            draws.append(lam)
    variance = 1 / (4 * (2 * alpha + 1))
    assert np.mean(draws) == pytest.approx(0.5, abs=3 * (variance / 600) ** 0.5)
    assert np.var(draws) == pytest.approx(variance, rel=0.15)


def test_soft_labels_can_be_mixed_again(open_client, batch):
    client = open_client(start("mixup"), "dark-0")
    twice = Mixup(5.0).batch(client, Mixup(5.0).batch(client, batch))
    np.testing.assert_allclose(twice.y.sum(1).numpy(), 1.0, rtol=1e-6)
    assert twice.y.shape == (6, 4)
