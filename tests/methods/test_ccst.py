"""Chen et al., WACV 2023: styles of clients and AdaIN with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch
from fedshift.core.registry import build
from fedshift.methods.ccst.feature_styles import FeatureStyles
from fedshift.methods.ccst.pixel_styles import PixelStyles, restyled
from fedshift.methods.shared.style_bank import image_styles, overall_style
from fedshift.testing import play, start

NAME = PixelStyles().name
CLIENTS = ("bright-0", "bright-1", "dark-0", "dark-1")


@pytest.fixture
def admitted(open_client):
    """A client in round 1, when the styles of all are known."""

    def find(method="ccst", rounds=1):
        session = play(start(method), rounds)
        client = open_client(session, "dark-0")
        return session, client, Batch(*client.site.data.train.take(torch.arange(8)))

    return find


def test_a_restyled_map_has_the_style_and_an_own_one_is_unchanged():
    rng = np.random.default_rng(0)
    x, styles = torch.from_numpy(rng.normal(size=(3, 2, 5, 5))), rng.uniform(0.5, 2, (3, 2, 2))
    found = restyled(x, torch.tensor([False, True, False]), torch.from_numpy(styles))
    assert torch.equal(found[1], x[1])
    for i in (0, 2):
        np.testing.assert_allclose(found[i].numpy().mean((1, 2)), styles[i, 0], rtol=1e-6)
        np.testing.assert_allclose(found[i].numpy().std((1, 2)), styles[i, 1], rtol=1e-4)


def test_the_overall_style_is_that_of_all_pixels_together():
    x = np.random.default_rng(0).normal(1.0, 3.0, (7, 2, 6, 6)) * np.arange(1, 8).reshape(
        7, 1, 1, 1
    )
    found = overall_style(image_styles(torch.from_numpy(x))).numpy()
    np.testing.assert_allclose(found[0], x.mean((0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(found[1], x.std((0, 2, 3)), rtol=1e-5)


def test_every_client_sends_the_style_of_its_images():
    session = play(start("ccst"), 1)
    for client, site in session.federation.sites.items():
        x = site.data.train.take(torch.arange(len(site.data.train)))[0].double().numpy()
        told = session.server.state[NAME][f"styles/{client}"][0].numpy()
        expected = [x.mean((0, 2, 3)), x.std((0, 2, 3))]
        np.testing.assert_allclose(told, expected, rtol=1e-4, atol=1e-5)


def test_images_are_as_they_are_or_in_another_clients_style(admitted):
    session, client, batch = admitted()
    kept = session.server.state[NAME]
    change = PixelStyles().draw(client, 8)
    found = change(batch.x).numpy()
    others = [kept[f"styles/{c}"][0].numpy() for c in CLIENTS if c != "dark-0"]
    for i in range(8):
        if change.keywords["own"][i]:
            np.testing.assert_array_equal(found[i], batch.x[i].numpy())
        else:
            mean, std = found[i].mean((1, 2)), found[i].std((1, 2))
            assert any(
                np.allclose(mean, s[0], atol=1e-4) and np.allclose(std, s[1], rtol=1e-2)
                for s in others
            )


def test_every_client_is_drawn_equally_often(admitted):
    """Four clients, the own one among them: a quarter each, three standard errors of 4000."""
    session, client, _ = admitted()
    drawn = PixelStyles().draw(client, 4000).keywords
    assert float(drawn["own"].float().mean()) == pytest.approx(0.25, abs=0.0206)
    styles = drawn["styles"][~drawn["own"]]
    for c in ("bright-0", "bright-1", "dark-1"):
        same = (styles == session.server.state[NAME][f"styles/{c}"]).all(2).all(1)
        assert float(same.float().mean()) == pytest.approx(1 / 3, abs=0.03)


def test_clients_with_many_styles_are_not_drawn_more_often(admitted):
    """Banks of four, one and one style: a third of the foreign draws each."""
    _, client, _ = admitted()
    owner = torch.tensor([0, 0, 0, 0, 1, 2])
    rows = torch.arange(6.0).view(6, 1, 1).expand(6, 2, 3)
    client.inbox |= {f"{NAME}/styles": rows, f"{NAME}/owner": owner}
    drawn = PixelStyles().draw(client, 4000).keywords
    found = owner[drawn["styles"][~drawn["own"]][:, 0, 0].long()]
    shares = torch.bincount(found) / len(found)
    np.testing.assert_allclose(shares.numpy(), 1 / 3, atol=0.03)


def test_a_bank_of_single_images_holds_their_styles(admitted):
    session, client, batch = admitted("ccst[bank=single, size=3]")
    told = session.server.state[NAME]["styles/bright-0"].numpy()
    assert told.shape == (3, 2, 3)
    data = session.federation.sites["bright-0"].data.train
    x = data.take(torch.arange(len(data)))[0].numpy()
    for mean, _ in told:
        assert np.abs(x.mean((2, 3)) - mean).max(1).min() < 1e-5
    assert len(PixelStyles(level=3).batch(client, batch).x) == 24


def test_feature_styles_start_in_round_2_and_change_the_first_stage_only(admitted, same):
    plain, first = play(start("fedavg"), 1), play(start("ccst[styles=features]"), 1)
    same(plain.server.shared, first.server.shared)
    session, client, batch = admitted("ccst[styles=features]", 1)
    part = FeatureStyles()
    client.net.train()
    before = client.net(batch.x).taps["block1"].detach()
    styled = client.net(part.batch(client, batch).x).taps["block1"].detach()
    told = torch.cat([session.server.state[part.name][f"styles/{c}"] for c in CLIENTS])
    own = (styled == before).flatten(1).all(1)
    assert not own.all()
    means = styled[~own].mean((2, 3))
    gaps = (means[:, None] - told[:, 0]).abs().amax(2).amin(1)
    assert float(gaps.max()) < 1e-3
    part.finish(client)
    assert torch.equal(client.net(batch.x).taps["block1"].detach(), before)


def test_styles_are_pixels_or_features():
    with pytest.raises(ConfigError, match="takes pixels or features"):
        build("ccst", styles="vgg")
