"""Zhou and Konukoglu, ICLR 2023, Eqs. 5 to 9."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.registry import build
from fedshift.methods.fedfa.method import FeatureAugmentation
from fedshift.methods.fedfa.statistics import fusion_coefficient, redraw_statistics
from fedshift.testing import play, start

NAME = FeatureAugmentation().name


def test_gamma_is_equation_9():
    s = np.array([0.5, 2.0, 0.0, 7.0])
    a = 1 / (1 + 1 / np.maximum(s, 1e-300))
    found = fusion_coefficient(torch.from_numpy(s)).numpy()
    np.testing.assert_allclose(found, 4 * a / a.sum(), rtol=1e-9, atol=1e-12)


def test_channels_that_differ_alike_all_get_one():
    for s in (0.0, 1e-3, 5.0):
        torch.testing.assert_close(fusion_coefficient(torch.full((6,), s)), torch.ones(6))


def test_statistics_are_moved_by_the_noise_times_the_batchs_deviation():
    rng = np.random.default_rng(0)
    x, gamma = rng.normal(1.0, 2.0, (5, 3, 8, 8)), np.array([[0.0, 1.0, 2.0], [3.0, 0.5, 0.0]])
    noise = rng.normal(size=(2, 5, 3)) * 0.1
    found = redraw_statistics(*map(torch.from_numpy, (x, gamma, noise))).numpy()
    for i, f in enumerate((np.mean, np.std)):
        own = f(x, (2, 3))  # (B, C)
        expected = own + noise[i] * np.sqrt((1 + gamma[i]) * own.var(0))
        np.testing.assert_allclose(f(found, (2, 3)), expected, rtol=1e-3, atol=1e-3)


def test_without_noise_the_maps_are_unchanged():
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    found = redraw_statistics(x, torch.ones(2, 3), torch.zeros(2, 4, 3))
    torch.testing.assert_close(found, x, atol=1e-5, rtol=1e-5)


def test_with_zero_chance_it_is_fedavg(same):
    plain, found = play(start("fedavg"), 2), play(start(build("fedfa", p=0.0)), 2)
    same(plain.server.shared, found.server.shared)


def test_the_server_sends_the_variance_over_clients(replies):
    session = play(start("fedfa"), 1)
    rows = replies(session, 1)
    for key in ("mean/block1", "std/block2"):
        told = np.stack([u.payload[f"{NAME}/{key}"].double().numpy() for u in rows])
        found = session.server.state[NAME][key].numpy()
        np.testing.assert_allclose(found, told.var(0), rtol=1e-4, atol=1e-7)
        assert np.ptp(found) > 0


def test_one_variance_for_all_channels_makes_gamma_one(replies):
    session = play(start("fedfa[fusion=scalar]"), 1)
    rows = replies(session, 1)
    told = np.stack([u.payload[f"{NAME}/mean/block2"].double().numpy() for u in rows])
    found = session.server.state[NAME]["mean/block2"]
    np.testing.assert_allclose(found.numpy(), told.var(), rtol=1e-4)
    torch.testing.assert_close(fusion_coefficient(found), torch.ones(8))


def test_running_statistics_move_once_per_batch_by_momentum(open_client):
    client = open_client(start("fedfa"), "dark-0")
    part = FeatureAugmentation(p=0.0, momentum=0.9)
    client.net.train()
    expected = None
    for i in range(3):
        x, y = client.site.data.train.take(torch.arange(i, i + 6))
        batch = part.batch(client, Batch(x, y, i))
        out = client.net(batch.x)
        for _ in range(2):  # a second look at the same batch changes nothing
            assert part.loss(client, Step(batch, out, "model")) is None
        now = out.taps["block1"].detach().double().numpy().mean((0, 2, 3))
        expected = now if expected is None else 0.9 * expected + 0.1 * now
    found = client.state[NAME]["mean/block1"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_backbone_without_maps_is_refused():
    with pytest.raises(ConfigError, match="redraws statistics of feature maps"):
        start("fedfa", backbone="mlp", backbone_options={})
