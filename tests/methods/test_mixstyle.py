"""Zhou et al., ICLR 2021, Eqs. 2 to 6."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch
from fedshift.core.registry import build
from fedshift.methods.mixstyle import MixStyle, mix_styles
from fedshift.methods.shared.styles import necks_of
from fedshift.testing import play, start

NAME = MixStyle().name


@pytest.fixture
def maps():
    return torch.from_numpy(np.random.default_rng(0).normal(1.0, 2.0, (3, 4, 5, 5)))


def test_mixed_statistics_are_the_convex_combination_of_both_samples(maps):
    other, lam = torch.tensor([1, 2, 0]), np.array([0.0, 0.25, 1.0])
    found = mix_styles(maps, other, torch.from_numpy(lam)).numpy()
    x, y = maps.numpy(), maps.numpy()[other.numpy()]
    for axis in (np.mean, np.std):
        own, partner = axis(x, (2, 3)), axis(y, (2, 3))
        expected = lam[:, None] * own + (1 - lam[:, None]) * partner
        np.testing.assert_allclose(axis(found, (2, 3)), expected, rtol=1e-5)


def test_content_is_kept(maps):
    """Normalised by their own statistics, the maps are what they were."""
    found = mix_styles(maps, torch.tensor([1, 2, 0]), torch.full((3,), 0.3).double()).numpy()

    def content(x):
        return (x - x.mean((2, 3), keepdims=True)) / x.std((2, 3), keepdims=True)

    np.testing.assert_allclose(content(found), content(maps.numpy()), atol=1e-5)


def test_a_sample_mixed_with_itself_is_unchanged(maps):
    found = mix_styles(maps, torch.arange(3), torch.full((3,), 0.7).double())
    torch.testing.assert_close(found, maps)


def test_no_gradient_flows_to_the_partner(maps):
    x = maps.clone().requires_grad_()
    mix_styles(x, torch.tensor([1, 2, 0]), torch.zeros(3).double())[0].square().sum().backward()
    assert x.grad[0].abs().sum() > 0
    assert not x.grad[1:].any()


def test_with_zero_chance_it_is_fedavg(same):
    plain, mixed = play(start("fedavg"), 2), play(start(build("mixstyle", p=0.0)), 2)
    same(plain.server.shared, mixed.server.shared)


def test_scoring_and_other_clients_see_the_plain_net(open_client):
    session = start(build("mixstyle", p=1.0, alpha=5.0))
    client = open_client(session, "dark-0")
    x, y = client.site.data.train.take(torch.arange(6))
    part = session.server.method.parts[0]
    client.net.train()
    plain = client.net(x).logits
    part.batch(client, Batch(x, y))
    mixed = client.net(x).logits
    assert not torch.equal(mixed, plain)
    assert torch.equal(client.net(x).logits, mixed)
    part.finish(client)
    assert torch.equal(client.net(x).logits, plain)


def test_the_early_stages_are_all_with_maps_but_the_last():
    session = start("mixstyle")
    assert [*necks_of(session.server.net, NAME)] == ["block1", "block2"]
    chosen = start("mixstyle[stages=block3]").server.net
    assert [*necks_of(chosen, NAME)] == ["block3"]


def test_a_backbone_without_maps_is_refused():
    with pytest.raises(ConfigError, match="mix-style mixes statistics of feature maps"):
        start("mixstyle", backbone="mlp", backbone_options={})


def test_shares_are_beta_distributed(open_client):
    """Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)); 2000 draws, three standard errors."""
    client = open_client(start("mixstyle"), "dark-0")
    drawn = MixStyle(p=1.0, alpha=0.5).draw(client, 2000).keywords["share"].numpy()
    assert drawn.mean() == pytest.approx(0.5, abs=3 * (0.125 / 2000) ** 0.5)
    assert drawn.var() == pytest.approx(0.125, rel=0.1)
    chances = [MixStyle(p=0.25).draw(client, 2) is not None for _ in range(400)]
    assert np.mean(chances) == pytest.approx(0.25, abs=3 * (0.1875 / 400) ** 0.5)
