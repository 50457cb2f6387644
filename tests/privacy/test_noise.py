"""Secret noise: where its bits come from, its distribution, and what it leaves in the last bits."""

from __future__ import annotations

import itertools
import math
import os
import sys

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest, norm

from fedshift.base.errors import ConfigError
from fedshift.privacy import noise
from fedshift.privacy.dp import LocalDP, on_grid
from fedshift.testing import play, start


class Fixed:
    """Words that a test has chosen."""

    def __init__(self, *batches):
        self.batches = [np.array(batch, dtype=np.uint64) for batch in batches]

    def words(self, count):
        batch = self.batches.pop(0)
        assert len(batch) == count
        return batch


def test_torch_would_draw_from_32_bits_of_its_seed():
    few, many = (torch.Generator().manual_seed(7 + (high << 32)) for high in (0, 12345))
    same = [torch.randn(9, generator=g) for g in (few, many)]
    assert torch.equal(*same)


@pytest.mark.parametrize("method", ["local-dp", "central-dp"])
def test_secret_noise_has_a_fresh_key_of_256_bits_and_never_asks_torch(method, monkeypatch):
    keys, real = [], os.urandom

    def urandom(size):
        keys.append(real(size))
        return keys[-1]

    session = start(f"{method}[randomness=system]")
    monkeypatch.setattr(noise.os, "urandom", urandom)
    monkeypatch.setattr(torch, "randn", None)
    play(session, 1)
    long = [key for key in keys if len(key) >= 32]
    assert len(long) == len(set(long)) == (4 if method == "local-dp" else 1)


def test_the_key_alone_decides(monkeypatch):
    monkeypatch.setattr(noise.os, "urandom", bytes)
    first = noise.discrete_gaussian(50)
    assert np.array_equal(first, noise.discrete_gaussian(50))
    monkeypatch.setattr(noise.os, "urandom", lambda size: b"\1" * size)
    assert not np.array_equal(first, noise.discrete_gaussian(50))


def test_noise_is_gaussian():
    x = noise.discrete_gaussian(200_000) / noise.CELLS
    assert kstest(x, "norm").pvalue > 1e-6
    assert np.var(x) == pytest.approx(1, abs=5 * math.sqrt(2 / len(x)))
    for edge in (1.0, 2.0, 3.0, 4.0):  # both tails
        count, chance = int((np.abs(x) > edge).sum()), 2 * norm.sf(edge)
        low, high = binom.interval(1 - 1e-6, len(x), chance)
        assert low <= count <= high


def test_proposals_are_geometric_cells():
    word = np.array([1, 2, 3, 12, 1 << 38, 0], dtype=np.uint64)
    assert noise.zeros_at_end(word).tolist() == [0, 1, 0, 2, 38, 39]


def test_no_zero_is_counted_twice_and_the_sign_is_one_bit():
    sign, odd = 1 << noise.FINE, 1 << (noise.FINE + 1)  # odd: k = 0
    source = Fixed([odd, odd | sign, odd | 5, odd | 5 | sign], [0, 0, 0, 0])
    assert noise._accepted(source, 4).tolist() == [0, 5, -5]


def test_acceptance_is_the_ratio_of_densities():
    """k = 1, i = 0: exp(-1/2) 2 / 1.25 of 2^64 words are accepted."""
    limit = int(math.exp(-0.5) * 2 / 1.25 * 2**64)
    word = 1 << (noise.FINE + 2)
    for drawn, kept in ((limit - 2**13, [noise.CELLS]), (limit + 2**13, [])):
        assert noise._accepted(Fixed([word], [drawn]), 1).tolist() == kept


def test_a_tie_is_decided_by_64_more_bits():
    chance = np.array([3.5 * 2.0**-64, 3.5 * 2.0**-64])
    found = noise.bernoulli(chance, Fixed([3, 3], [2**63 - 1, 2**63]))
    assert found.tolist() == [True, False]


def test_what_is_added_has_whole_grid_steps_and_no_larger_norm():
    generator = torch.Generator().manual_seed(0)
    step = {"w": torch.randn(40, 50, generator=generator), "b": torch.randn(7, generator=generator)}
    length = math.sqrt(sum(float((v.double() ** 2).sum()) for v in step.values()))
    for clip in (0.5, 1e4):
        grid = 1.3 * clip / noise.CELLS
        whole = on_grid(step, clip, grid)
        exact = sum(int(v) ** 2 for entry in whole.values() for v in entry.ravel())
        assert math.sqrt(exact) * grid <= clip
        for key, value in step.items():
            wanted = value.double() * min(1.0, clip / length)
            np.testing.assert_allclose(whole[key] * grid, wanted, atol=1.01 * grid)


def test_the_sum_with_noise_lies_on_the_grid_whatever_the_update():
    """Mironov's attack tells updates apart by which sums are possible; here all are the same."""
    part = LocalDP(clip=0.7, noise=1.1, randomness="system")
    grid = 1.1 * 0.7 / noise.CELLS
    for value in (0.3, 1e-9, -0.7000001):
        noisy = part.hidden([{"w": torch.full((500,), value)}], {"w": torch.zeros(500)})["w"]
        steps = noisy.numpy() / grid
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-6)
        assert len(set(np.round(steps).astype(int) % 2)) == 2


def test_clipped_update_and_noise_add_up():
    part = LocalDP(clip=2.0, noise=0.5, randomness="system")
    drawn = [
        part.hidden([{"w": torch.full((4,), 50.0)}], {"w": torch.zeros(4)})["w"].numpy()
        for _ in range(2000)
    ]
    mean, std = np.mean(drawn), np.std(np.subtract(drawn, 1.0))
    assert mean == pytest.approx(1.0, abs=5 / math.sqrt(8000))  # 2 / |(1, 1, 1, 1)|
    assert std == pytest.approx(0.5 * 2.0, rel=0.05)


def test_dtypes_and_shapes_are_kept():
    session = play(start("local-dp[randomness=system]"), 1)
    for key, value in session.server.shared.items():
        assert value.dtype == session.server.initial[key].dtype
        assert value.shape == session.server.initial[key].shape


@pytest.mark.parametrize("method", ["local-dp", "central-dp"])
def test_without_the_library_a_run_is_refused_before_round_0(method, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"cryptography; pip install fedshift\[privacy\]"):
        start(f"{method}[randomness=system]")


def test_successive_draws_differ():
    drawn = [noise.discrete_gaussian(40).tolist() for _ in range(5)]
    assert not any(a == b for a, b in itertools.combinations(drawn, 2))
