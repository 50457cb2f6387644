"""Channel statistics and AdaIN against NumPy, and the neck that acts on one batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.methods.shared.styles import EPSILON, BatchNeck, adain, channel_statistics


@pytest.fixture
def maps():
    return torch.from_numpy(np.random.default_rng(0).normal(2.0, 3.0, (4, 5, 6, 7)))


def test_the_statistics_are_those_over_positions(maps):
    mean, std = channel_statistics(maps)
    x = maps.numpy()
    np.testing.assert_allclose(mean.numpy(), x.mean((2, 3), keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(
        std.numpy(), np.sqrt(x.var((2, 3), keepdims=True) + EPSILON), rtol=1e-12
    )


def test_adain_gives_the_maps_the_wanted_statistics(maps):
    mean, std = torch.full((4, 5, 1, 1), -1.5).double(), torch.full((1, 5, 1, 1), 0.25).double()
    x = adain(maps, mean, std).numpy()
    np.testing.assert_allclose(x.mean((2, 3)), -1.5, rtol=1e-9)
    np.testing.assert_allclose(x.std((2, 3)), 0.25, rtol=1e-5)


def test_adain_with_the_maps_own_statistics_changes_nothing(maps):
    torch.testing.assert_close(adain(maps, *channel_statistics(maps)), maps)


def test_a_constant_channel_takes_the_wanted_mean():
    x = adain(torch.full((2, 3, 4, 4), 7.0), torch.tensor(2.0), torch.tensor(5.0))
    assert torch.equal(x, torch.full((2, 3, 4, 4), 2.0))


def test_the_neck_changes_its_batch_in_training_and_nothing_else(maps):
    neck = BatchNeck()
    assert neck(maps)[0] is maps
    neck.prepare(4, lambda x: 2 * x)
    assert torch.equal(neck(maps)[0], 2 * maps)
    assert neck(maps[:3])[0].equal(maps[:3])  # another number of samples: not the batch
    assert neck.eval()(maps)[0] is maps
    neck.train().rest()
    assert neck(maps)[0] is maps
    assert not neck.state_dict()
