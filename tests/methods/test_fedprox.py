"""Li et al., MLSys 2020, Eq. 2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.method import Method
from fedshift.core.net import load
from fedshift.methods.fedprox import Proximal
from fedshift.testing import play, start


def test_fedprox_with_zero_mu_is_fedavg(same):
    fedavg, fedprox = play(start("fedavg"), 2), play(start(Method((Proximal(0.0),))), 2)
    same(fedavg.server.shared, fedprox.server.shared)


def test_the_gradient_of_the_term_is_mu_times_the_gap(open_client):
    client = open_client(start("fedavg"), "dark-0")
    moved = {
        k: torch.randn(v.shape, generator=torch.Generator().manual_seed(1))
        for k, v in client.net.named_parameters()
    }
    load(client.net, moved)
    Proximal(0.3).loss(client, None).backward()
    for key, parameter in client.net.named_parameters():
        gap = moved[key].numpy() - client.received[key].numpy()
        np.testing.assert_allclose(parameter.grad.numpy(), 0.3 * gap, rtol=1e-6)


def test_the_term_is_half_mu_times_the_squared_distance(open_client):
    client = open_client(start("fedavg"), "dark-0")
    load(client.net, {k: v.detach() + 2.0 for k, v in client.net.named_parameters()})
    count = sum(p.numel() for p in client.net.parameters())
    term = Proximal(0.5).loss(client, None)
    assert float(term.detach()) == pytest.approx(0.5 * 0.5 * 4.0 * count, rel=1e-5)


def test_fedprox_pulls_from_the_first_step_towards_the_received_model(bowls):
    mu, lr = 0.7, 0.1
    session = play(bowls.start(Proximal(mu), lr=lr), 2)
    theta = bowls.w
    for _ in range(2):
        local = []
        for k in ("left", "right"):
            w = theta
            for _ in range(3):
                w = w - lr * (bowls.a[k] * (w - bowls.b[k]) + mu * (w - theta))
            local.append(w)
        theta = np.mean(local, axis=0)
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), theta, rtol=1e-5)


def test_private_entries_have_nothing_to_be_pulled_to(open_client):
    client = open_client(start("fedper + fedprox"), "dark-0")
    pulled = {key for key, _, _ in client.anchors()}
    assert pulled == {k for k, _ in client.net.named_parameters() if not k.startswith("head.")}


def test_a_client_without_shared_entries_has_no_term(open_client):
    assert Proximal(0.5).loss(open_client(start("local"), "dark-0"), None) is None
