"""Li et al., ICML 2023: features of which the server cannot tell the client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.message import Update
from fedshift.core.net import Output
from fedshift.core.registry import build
from fedshift.methods.adcol.discriminator import discriminator, unknown_origin
from fedshift.methods.adcol.method import HiddenOrigin
from fedshift.testing import play, start

NAME = HiddenOrigin().name
CLIENTS = ("bright-0", "bright-1", "dark-0", "dark-1")


def test_the_term_is_the_divergence_of_the_origin_from_uniform():
    logits = np.random.default_rng(0).normal(size=(5, 4))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = (0.25 * np.log(0.25 / p)).sum(1).mean()
    x = torch.from_numpy(logits).requires_grad_()
    term = unknown_origin(x)
    assert float(term.detach()) == pytest.approx(expected)
    term.backward()
    np.testing.assert_allclose(x.grad.numpy(), (p - 0.25) / 5, rtol=1e-9)


def test_a_discriminator_that_knows_nothing_pulls_at_nothing():
    x = torch.full((3, 7), 2.5, dtype=torch.float64, requires_grad=True)
    term = unknown_origin(x)
    term.backward()
    assert float(term.detach()) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), 0, atol=1e-12)


@pytest.fixture(scope="module")
def one_round():
    return play(start(build("adcol", samples=5, width=8)), 1)


def test_a_client_adds_mu_times_the_divergence_that_the_frozen_discriminator_sees(
    one_round, open_client
):
    """D in NumPy: twice a linear map, BatchNorm by its running statistics and ReLU, then a head."""
    part, client = HiddenOrigin(mu=0.3), open_client(one_round, "dark-0")
    d = {k.removeprefix("net/"): v.double().numpy() for k, v in client.payload(part).items()}
    z = np.random.default_rng(3).normal(size=(6, d["hidden.0.weight"].shape[1]))
    h = z
    for i in (0, 3):
        mean, var = (d[f"hidden.{i + 1}.running_{k}"] for k in ("mean", "var"))
        unit = (h @ d[f"hidden.{i}.weight"].T - mean) / np.sqrt(var + 1e-5)
        h = np.maximum(0, unit * d[f"hidden.{i + 1}.weight"] + d[f"hidden.{i + 1}.bias"])
    e = np.exp(h @ d["head.weight"].T)
    expected = 0.3 * (0.25 * np.log(0.25 / (e / e.sum(1, keepdims=True)))).sum(1).mean()
    features = torch.from_numpy(z).float()
    part.begin(client)
    step = Step(Batch(features, torch.zeros(6).long()), Output(features[:, :4], features), "model")
    assert float(part.loss(client, step)) == pytest.approx(expected, rel=1e-4)


def told(client, z):
    return Update(client, "train", 1, payload={f"{NAME}/features": torch.from_numpy(z).float()})


def test_the_server_learns_which_client_a_feature_is_from():
    part = HiddenOrigin(width=16, server_epochs=60, server_lr=0.1)
    server = start("adcol").server
    server.roster = dict.fromkeys(CLIENTS)
    rng, places = np.random.default_rng(1), {"dark-1": 3.0, "bright-1": -3.0}
    part.merge(server, [told(c, at + rng.normal(size=(20, 5))) for c, at in places.items()])
    net = discriminator(5, 4, 16)
    net.load_state_dict({k.removeprefix("net/"): v for k, v in part.send(server, "x").items()})
    answers = net.eval()(torch.tensor([[3.0] * 5, [-3.0] * 5])).logits.argmax(1)
    assert [CLIENTS[i] for i in answers] == ["dark-1", "bright-1"]


def test_each_pass_of_the_server_is_a_gradient_step_if_one_batch_holds_all_features():
    server = start("adcol", batch_size=64).server
    server.roster = dict.fromkeys(CLIENTS)
    rng = np.random.default_rng(4)
    sent = [told(client, rng.normal(size=(6, 5))) for client in ("dark-1", "bright-0")]
    HiddenOrigin(width=4, server_epochs=0).merge(server, sent)
    net = discriminator(5, 4, 4).double()
    net.load_state_dict({k.removeprefix("net/"): v for k, v in server.state[NAME].items()})
    HiddenOrigin(width=4, server_epochs=2, server_lr=0.1).merge(server, sent)
    x = torch.cat([u.payload[f"{NAME}/features"] for u in sent]).double()
    y = torch.tensor([3] * 6 + [0] * 6)  # places of the names among all clients
    for _ in range(2):
        loss = F.cross_entropy(net.train()(x).logits, y)
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), slopes, strict=True):
                p.sub_(0.1 * g)
    for key, value in net.named_parameters():
        found = server.state[NAME][f"net/{key}"]
        np.testing.assert_allclose(found, value.detach(), rtol=1e-3, atol=1e-5)


def test_the_discriminator_goes_on_where_the_last_round_stopped():
    server = start("adcol").server
    server.roster = dict.fromkeys(CLIENTS)
    z = np.random.default_rng(2).normal(size=(8, 5))
    HiddenOrigin(width=4).merge(server, [told("dark-0", z)])
    before = {k: v.clone() for k, v in server.state[NAME].items()}
    HiddenOrigin(width=4, server_epochs=0).merge(server, [told("dark-0", z)])
    assert all(torch.equal(v, before[k]) for k, v in server.state[NAME].items())


def test_clients_send_features_of_the_trained_model_of_drawn_samples(one_round, replies):
    session, drawn = one_round, []
    for update in replies(session, 1):
        data = session.federation.sites[update.client].data.train
        net = session.server.net
        net.load_state_dict(session.server.initial | update.shared)
        x, _ = data.take(torch.arange(len(data)))
        z = net.eval()(x).features.detach()
        sent = update.payload[f"{NAME}/features"]
        assert len(sent) == 5
        nearest, rows = torch.cdist(sent, z).min(1)
        np.testing.assert_allclose(nearest, 0, atol=1e-3)
        drawn.append(rows.tolist())
    assert any(rows != sorted(rows) for rows in drawn)  # at random, not the first ones


def test_with_zero_mu_adcol_is_fedavg_and_round_1_always_is(same):
    methods = ("fedavg", build("adcol", mu=0, width=8), build("adcol", width=8))
    plain, zero, one = (play(start(m), 1) for m in methods)
    same(plain.server.shared, one.server.shared)
    play(plain, 1), play(zero, 1), play(one, 1)
    same(plain.server.shared, zero.server.shared)
    assert any(not torch.equal(v, one.server.shared[k]) for k, v in plain.server.shared.items())


def test_a_backbone_whose_features_are_the_inputs_is_refused():
    with pytest.raises(ConfigError, match="are the inputs themselves"):
        start("adcol", backbone="linear", backbone_options={})


def test_models_may_stay_private(state_of, same):
    alone = play(start("local"), 1)
    apart = play(start(build("adcol", share_model=False, mu=0, width=8)), 1)
    same(state_of(alone, "dark-0", "net"), state_of(apart, "dark-0", "net"))
