"""Park et al., NeurIPS 2023: styles shared, shifted and explored, and the highlighter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.loop import Batch
from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.methods.stablefdg.exploration import StyleExploration, explore_styles, rarest_classes
from fedshift.methods.stablefdg.highlighter import FeatureHighlighter, Highlighter, next_of_class
from fedshift.methods.stablefdg.sharing import StyleSharing, shift_styles, style_of
from fedshift.testing import play, start

SHARING = StyleSharing().name


@pytest.fixture
def maps():
    return torch.from_numpy(np.random.default_rng(0).normal(1.0, 2.0, (6, 3, 7, 7)))


def statistics(x):
    return np.stack([x.mean((2, 3)), x.std((2, 3))], 1)  # (B, 2, C)


def test_a_clients_style_is_mean_and_deviation_over_its_images(maps):
    s = statistics(maps.numpy())
    found = style_of(torch.from_numpy(s)).numpy()
    np.testing.assert_allclose(found, [s.mean(0), s.std(0)], rtol=1e-12)


def test_half_of_the_rows_take_drawn_styles_and_the_others_stay(maps):
    rng = np.random.default_rng(1)
    style, noise = rng.uniform(0.5, 1.0, (2, 2, 3)), rng.normal(size=(3, 2, 3)) * 0.3
    rows = torch.tensor([4, 0, 3])
    found = shift_styles(maps, rows, *map(torch.from_numpy, (style, noise)))
    assert torch.equal(found[[1, 2, 5]], maps[[1, 2, 5]])
    expected = style[0] + noise * style[1]
    np.testing.assert_allclose(statistics(found.numpy())[[4, 0, 3]], expected, rtol=1e-4)


def test_a_drawn_deviation_is_never_negative(maps):
    noise = torch.full((6, 2, 3), -5.0).double()
    found = shift_styles(maps, torch.arange(6), torch.ones(2, 2, 3).double(), noise)
    assert float(found.std((2, 3)).max()) < 1e-9


def test_explored_styles_lie_beyond_their_place(maps):
    """s + level (s - mean over the batch) for the added rows."""
    found = statistics(explore_styles(maps, 2, 0.5).numpy())
    s = statistics(maps.numpy())
    np.testing.assert_allclose(found[:4], s[:4], rtol=1e-12)
    np.testing.assert_allclose(found[4:], s[4:] + 0.5 * (s[4:] - s.mean(0)), rtol=1e-4)


def test_oversampling_evens_the_classes_out():
    y = torch.tensor([0, 0, 0, 0, 1, 2, 2])
    rows = rarest_classes(y, 5, torch.Generator().manual_seed(0))
    assert torch.bincount(torch.cat([y, y[rows]])).tolist() == [4, 4, 4]


def test_partners_are_the_next_of_the_class_around_the_batch():
    y = torch.tensor([3, 1, 3, 3, 1, 7])
    assert next_of_class(y).tolist() == [2, 4, 3, 0, 1, 5]


def test_the_highlighter_weighs_positions_by_the_softmax_of_mean_cosines(maps):
    neck = Highlighter(3, width=4).double()
    neck.partner = torch.tensor([1, 0, 3, 2, 5, 4])
    found = neck(maps)[0].detach().numpy()

    def unit(conv):
        w, b = (p.detach().numpy() for p in conv.parameters())
        z = (
            np.einsum("kc,bcp->bkp", w[:, :, 0, 0], maps.numpy().reshape(6, 3, 49))
            + b[None, :, None]
        )
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    q, k = unit(neck.query), unit(neck.key)
    q = (q + q[neck.partner.numpy()]) / 2
    scores = np.einsum("bkp,bkr->bpr", q, k).mean(1)
    a = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = maps.numpy() * (1 + 49 * a.reshape(6, 1, 7, 7)) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_at_inference_a_sample_is_its_own_partner(maps):
    neck = Highlighter(3).double()
    neck.partner = torch.tensor([1, 0, 3, 2, 5, 4])
    trained = neck(maps)[0]
    alone = neck.eval()(maps)[0]
    assert not torch.equal(trained, alone)
    torch.testing.assert_close(neck(maps[2:3])[0], alone[2:3])


def test_the_server_lends_each_client_anothers_style():
    session = play(start("stablefdg"), 1)
    part, server = StyleSharing(), session.server
    for client in server.roster:
        sent = part.send(server, client)["style"]
        lenders = [c for c, s in server.state[SHARING].items() if torch.equal(s, sent)]
        assert len(lenders) == 1
        assert lenders != [client]


def test_styles_are_those_of_the_received_models_first_maps(replies):
    session = start("stablefdg")
    net = session.server.net.eval()
    expected = {}
    for client, site in session.federation.sites.items():
        x, _ = site.data.train.take(torch.arange(len(site.data.train)))
        s = statistics(net(x).taps["block1"].detach().double().numpy())
        expected[client] = [s.mean(0), s.std(0)]
    for update in replies(play(session, 1), 1):
        told = update.payload[f"{SHARING}/style"].numpy()
        np.testing.assert_allclose(told, expected[update.client], rtol=1e-3, atol=1e-3)


def test_without_chance_its_styles_are_fedavgs(same):
    plain = play(start("fedavg"), 2)
    found = play(start(Method((StyleSharing(p=0.0), StyleExploration(p=0.0)))), 2)
    same(plain.server.shared, found.server.shared)


def test_an_explored_batch_is_twice_as_large_and_the_highlighter_pairs_all_of_it(open_client):
    client = open_client(start("stablefdg"), "dark-0")
    batch = Batch(*client.site.data.train.take(torch.arange(6)))
    out = StyleExploration(p=1.0).batch(client, batch)
    assert torch.equal(out.x[:6], batch.x)
    assert len(out.x) == len(out.y) == 12
    FeatureHighlighter().batch(client, out)
    assert len(client.net.extra["feature-highlighter"].partner) == 12
    assert client.net.train()(out.x).logits.shape == (12, 4)


def test_each_idea_is_a_plug_in_of_its_own():
    assert [p.name for p in build("stablefdg").parts] == [
        SHARING,
        "style-exploration",
        "feature-highlighter",
    ]
    play(start("fedavg + feature-highlighter", steps=1), 1)
