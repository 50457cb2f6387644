"""DANN with the client as the domain (Ganin et al., JMLR 2016)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.loop import Batch, Step
from fedshift.core.registry import build
from fedshift.methods.dann import ClientAdversary, client_loss
from fedshift.testing import play, start

NAME = ClientAdversary().name


def split(entries):
    """Entries of the model, and of the discriminator."""
    own = {k: v for k, v in entries.items() if k.startswith(f"extra.{NAME}")}
    return {k: v for k, v in entries.items() if k not in own}, own


def test_the_loss_is_the_cross_entropy_over_the_clients_that_exist():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 8))
    found = client_loss(torch.from_numpy(logits), torch.tensor(2), torch.tensor(3))
    e = np.exp(logits[:, :3])
    assert float(found) == pytest.approx(-np.log(e[:, 2] / e.sum(1)).mean(), rel=1e-12)


def test_with_lam_0_the_model_is_fedavg(same):
    model, own = split(play(start("dann[lam=0]")).server.shared)
    same(model, play(start("fedavg")).server.shared)
    assert len(own) == 6


def test_the_discriminator_descends_and_the_body_climbs_by_lam(open_client):
    """One linear layer in NumPy: d CE / d logits = softmax - one-hot."""
    session = start("dann[lam=0.3]")
    play(session, 1)
    session.server.round = 2
    client = open_client(session, "dark-0")
    x, y = client.site.data.train.take(torch.arange(4))
    z = client.net(x).features.detach().requires_grad_()
    out = client.net(x)
    out.features = z
    discriminator = client.net.extra[NAME]
    with torch.no_grad():  # ReLUs that all pass make D linear
        discriminator[0].bias.fill_(100.0)
        discriminator[2].weight.abs_()
        discriminator[4].weight.mul_(1e-3)  # or the softmax is all one client's
    client.net.zero_grad()
    ClientAdversary(lam=0.3).loss(client, Step(Batch(x, y), out, "model")).backward()
    w1, b1, w2, b2, w3, b3 = (p.detach().double().numpy() for p in discriminator.parameters())
    features = z.detach().double().numpy()
    hidden = (features @ w1.T + b1) @ w2.T + b2
    logits = (hidden @ w3.T + b3)[:, :4]
    assert (features @ w1.T + b1).min() > 0
    assert hidden.min() > 0
    e = np.exp(logits - logits.max(1, keepdims=True))
    slope = e / e.sum(1, keepdims=True)
    slope[:, 2] -= 1.0  # bright-0, bright-1, dark-0, dark-1
    slope /= 4
    wanted = slope.T @ hidden
    found = discriminator[4].weight.grad.numpy()
    np.testing.assert_allclose(found[:4], wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    assert not found[4:].any()
    climb = -0.3 * slope @ w3[:4] @ w2 @ w1
    np.testing.assert_allclose(z.grad.numpy(), climb, rtol=1e-3, atol=1e-6)


def test_a_clients_number_is_its_place_by_name_whoever_takes_part():
    session = play(start("dann", clients_per_round=2, rounds=5))
    mail = [m for m in session.transport.seen if m.task == "train" and not hasattr(m, "steps")]
    names = sorted(session.server.roster)
    assert len({m.client for m in mail}) > 2
    for message in mail:
        assert int(message.payload[f"{NAME}/place"]) == names.index(message.client)
        assert int(message.payload[f"{NAME}/clients"]) == 4


def test_alternating_trains_the_model_on_even_and_the_discriminator_on_odd_batches(same, replies):
    def after(method, steps):
        session = play(start(method, steps=steps, rounds=1, weight_decay=0.01))
        return split(replies(session, 1)[0].shared)

    _, first_d = split(start("dann").server.initial)
    one_model, one_d = after("dann[alternate=true]", 1)
    same(one_d, first_d)  # D rests on the first batch
    same(one_model, after("dann", 1)[0])
    two_model, two_d = after("dann[alternate=true]", 2)
    trained = {k for k in one_model if k.endswith(("weight", "bias"))}
    same({k: two_model[k] for k in trained}, {k: one_model[k] for k in trained})
    assert all(not torch.equal(two_d[k], first_d[k]) for k in first_d)


def test_more_clients_than_outputs_is_an_error_that_says_what_to_set():
    with pytest.raises(ConfigError, match=r"4 clients enrolled, and client-adversary can tell 3; "):
        start("dann[most=3]")
    assert build("dann[most=4]").parts[0].most == 4
