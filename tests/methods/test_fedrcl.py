"""Seo et al., CVPR 2024: supervised contrast with a penalty on pairs that are too similar."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.core.loop import Batch, Step
from fedshift.core.net import Output
from fedshift.core.registry import build
from fedshift.methods.fedrcl import (
    RelaxedContrast,
    contrast_all,
    contrast_hardest,
    penalty_all,
    penalty_hardest,
    pooled,
)
from fedshift.testing import play, start

Y = np.array([0, 1, 0, 2, 1, 0, 0])
TAU, LAM = 0.3, 0.1


@pytest.fixture
def s():
    z = np.random.default_rng(1).normal(size=(len(Y), 3))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    return unit @ unit.T


def rows():
    """Each anchor with the other samples of its class, and those of other classes."""
    for i, y in enumerate(Y):
        yield (
            i,
            [j for j in range(len(Y)) if j != i and Y[j] == y],
            [j for j in range(len(Y)) if Y[j] != y],
        )


def shares():
    return F.one_hot(torch.from_numpy(Y), 3).double()


def test_the_contrast_with_all_pairs_is_the_mean_over_the_class(s):
    expected = []
    for i, same, others in rows():
        whole = np.log(np.exp(s[i, same + others] / TAU).sum())
        expected.append(np.mean(whole - s[i, same] / TAU) if same else 0.0)
    found = contrast_all(torch.from_numpy(s), shares(), TAU)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_the_penalty_counts_pairs_of_a_class_from_lam_on(s):
    expected = [
        np.log(1 + sum(np.exp((s[i, j] - 1) / TAU) for j in same if s[i, j] >= LAM))
        for i, same, _ in rows()
    ]
    found = penalty_all(torch.from_numpy(s), shares(), TAU, LAM)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    assert np.ptp(expected) > 0.1


def test_the_released_contrast_takes_the_least_similar_partner_and_two_others(s):
    expected = []
    for i, same, others in rows():
        near = min([s[i, j] for j in same], default=1.0)  # alone: the anchor itself
        far = sorted((s[i, j] for j in others), reverse=True)[:2]
        expected.append(np.log(np.exp(np.array([near, *far]) / TAU).sum()) - near / TAU)
    found = contrast_hardest(torch.from_numpy(s), torch.from_numpy(Y), TAU)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_the_released_penalty_is_of_the_least_similar_partner(s):
    u = [min([s[i, j] for j in same], default=-1.0) for i, same, _ in rows()]
    u = np.array([v if v >= -0.5 else -1.0 for v in u])
    found = penalty_hardest(torch.from_numpy(s), torch.from_numpy(Y), TAU, -0.5)
    np.testing.assert_allclose(found.numpy(), np.log(1 + np.exp((u - 1) / TAU)), rtol=1e-9)
    assert ((u > -1) & (u < 1)).any()
    assert (u == -1).any()


def test_with_one_partner_in_each_class_both_penalties_are_the_same():
    s = torch.tensor(
        [[1.0, 0.9, 0.2, 0.1], [0.9, 1.0, 0.3, 0.4], [0.2, 0.3, 1.0, 0.95], [0.1, 0.4, 0.95, 1.0]]
    )
    y = torch.tensor([0, 0, 1, 1])
    torch.testing.assert_close(
        penalty_all(s, F.one_hot(y).float(), 0.05, 0.7), penalty_hardest(s, y, 0.05, 0.7)
    )


def test_a_batch_of_one_class_has_no_other_to_contrast_with_and_stays_finite():
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.zeros(3, dtype=torch.int64)
    for pairs in ("all", "hardest"):
        term = RelaxedContrast(pairs=pairs).level(z, y, 2)
        (gradient,) = torch.autograd.grad(term, z)
        assert bool(gradient.isfinite().all())
    same = RelaxedContrast(pairs="hardest", penalty=0.0).level(z, y, 2)
    assert float(same.detach()) == pytest.approx(0.0, abs=1e-6)


def test_stages_are_pooled_over_positions_and_averaged(open_client):
    maps, tokens = torch.arange(24.0).reshape(2, 3, 2, 2), torch.arange(24.0).reshape(2, 4, 3)
    np.testing.assert_allclose(pooled(maps), maps.numpy().mean((2, 3)))
    np.testing.assert_allclose(pooled(tokens), tokens.numpy().mean(1))
    client, rng = open_client(start("fedrcl"), "dark-0"), np.random.default_rng(0)
    first, z = (torch.from_numpy(rng.normal(size=n)).float() for n in ((4, 3, 2, 2), (4, 5)))
    y, part = torch.tensor([0, 1, 0, 1]), RelaxedContrast()
    step = Step(
        Batch(torch.zeros(4, 1), y), Output(torch.zeros(4, 4), z, {"a": first, "b": z}), "model"
    )
    each = [part.level(pooled(first), y, 4), part.level(z, y, 4)]
    torch.testing.assert_close(part.loss(client, step), (each[0] + each[1]) / 2)
    torch.testing.assert_close(RelaxedContrast(levels="last").loss(client, step), each[1])


@pytest.mark.parametrize("pairs", ["all", "hardest"])
def test_the_weights_multiply_the_two_terms(pairs):
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    y = torch.tensor([0, 1, 0, 1, 2, 0])
    given = {"pairs": pairs, "tau": 0.5, "lam": 0.0}
    near, apart, both = (
        float(RelaxedContrast(**given, contrast=a, penalty=b).level(z, y, 3))
        for a, b in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0))
    )
    assert near > 0.1
    assert apart > 0.1
    assert both == pytest.approx(2 * near + 3 * apart, rel=1e-5)


def test_with_zero_weights_fedrcl_is_fedavg(same):
    fedavg, fedrcl = (
        play(start("fedavg"), 2),
        play(start(build("fedrcl", contrast=0, penalty=0)), 2),
    )
    same(fedavg.server.shared, fedrcl.server.shared)


def test_mixed_samples_are_contrasted_too():
    for pairs in ("all", "hardest"):
        session = play(start(build("fedrcl + mixup").set("pairs", pairs)), 1)
        assert all(v.isfinite().all() for v in session.server.shared.values())
