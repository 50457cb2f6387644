"""Qu et al., ICML 2022; Caldarola et al., ECCV 2022; Foret et al., ICLR 2021."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ClashError
from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.methods.fedprox import Proximal
from fedshift.methods.fedsam import SharpnessAware
from fedshift.methods.scaffold import ControlVariates
from fedshift.testing import play, start


def test_with_zero_rho_fedsam_is_fedavg(same):
    """Weights, BatchNorm statistics and counters: the second pass leaves no other trace."""
    same(
        play(start("fedavg")).server.shared,
        play(start(Method((SharpnessAware(0.0),)))).server.shared,
    )


def test_on_a_quadratic_the_gradient_is_that_at_the_point_uphill(bowls, replies):
    """grad F(w + e) = a (w + rho g / |g| - b) with g = a (w - b), three steps."""
    rho, lr = 0.7, 0.1
    session = play(bowls.start(SharpnessAware(rho), lr=lr), 1)
    for update in replies(session, 1):
        a, b = (v[update.client.removesuffix("-0")] for v in (bowls.a, bowls.b))
        w = bowls.w
        for _ in range(3):
            g = a * (w - b)
            w = w - lr * a * (w + rho * g / np.sqrt((g**2).sum()) - b)
        np.testing.assert_allclose(update.shared["bowl.w"].numpy(), w, rtol=1e-5)


def test_the_norm_is_that_of_all_tensors_together(open_client):
    """The weights are moved by exactly rho in total, whatever the number of tensors."""
    session = start("fedsam")
    client = open_client(session, "dark-0")
    net = client.net
    x, y = client.site.data.train.take(torch.arange(4))
    before = {k: p.detach().clone() for k, p in net.named_parameters()}
    seen = {}

    def objective(batch):
        seen.update({k: p.detach().clone() for k, p in net.named_parameters()})
        return client.task.loss(net(x).logits, y)

    client._objective = objective
    client.task.loss(net(x).logits, y).backward()
    gradients = {k: p.grad.clone() for k, p in net.named_parameters()}
    SharpnessAware(0.3).edit_gradients(client, type("Step", (), {"batch": None})())
    moves = {k: (seen[k] - w).numpy().astype(np.float64) for k, w in before.items()}
    assert np.sqrt(sum((m**2).sum() for m in moves.values())) == pytest.approx(0.3, rel=1e-3)
    along = sum((m * gradients[k].numpy()).sum() for k, m in moves.items())
    whole = np.sqrt(sum((g.numpy().astype(np.float64) ** 2).sum() for g in gradients.values()))
    assert along == pytest.approx(0.3 * whole, rel=1e-3)  # uphill, not downhill
    assert all(torch.equal(p, before[k]) for k, p in net.named_parameters())


def test_a_gradient_of_zero_moves_nothing(bowls):
    """At the minimum of a quadratic e = 0, not 0 / 0."""
    session = bowls.start(SharpnessAware(0.5), domains=("left",))
    session.server.shared = {"bowl.w": torch.tensor([3.0, -2.0])}
    play(session, 1)
    assert session.server.shared["bowl.w"].tolist() == [3.0, -2.0]


def test_terms_of_other_parts_are_part_of_the_objective(bowls, replies):
    """With FedProx the gradient uphill is a (w + e - b) + mu (w + e - theta)."""
    rho, lr, mu = 0.7, 0.1, 2.0
    session = play(bowls.start(Proximal(mu), SharpnessAware(rho), lr=lr), 1)
    for update in replies(session, 1):
        a, b = (v[update.client.removesuffix("-0")] for v in (bowls.a, bowls.b))
        w = bowls.w
        for _ in range(3):
            g = a * (w - b) + mu * (w - bowls.w)
            up = w + rho * g / np.sqrt((g**2).sum())
            w = w - lr * (a * (up - b) + mu * (up - bowls.w))
        np.testing.assert_allclose(update.shared["bowl.w"].numpy(), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [True, False])
def test_what_other_parts_add_to_the_gradient_is_kept_in_any_order(bowls, first):
    """SCAFFOLD: y <- y - lr (grad F(y + e) - c_i + c), e by the gradient alone, two rounds."""
    rho, lr = 0.5, 0.1
    parts = (SharpnessAware(rho), ControlVariates())
    session = bowls.start(*(parts if first else parts[::-1]), lr=lr, aggregate=Mean(Uniform()))
    x, c, c_i = bowls.w, np.zeros(2), {"left": np.zeros(2), "right": np.zeros(2)}
    for _ in range(2):
        models, controls = [], {}
        for k in ("left", "right"):
            y = x
            for _ in range(3):
                g = bowls.a[k] * (y - bowls.b[k])
                up = y + rho * g / np.sqrt((g**2).sum())
                y = y - lr * (bowls.a[k] * (up - bowls.b[k]) - c_i[k] + c)
            controls[k] = c_i[k] - c + (x - y) / (3 * lr)
            models.append(y)
        x, c, c_i = np.mean(models, axis=0), np.mean(list(controls.values()), axis=0), controls
    found = play(session, 2).server.shared["bowl.w"].numpy()
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


def test_two_parts_that_take_the_gradient_anew_clash():
    class Another(SharpnessAware):
        pass

    with pytest.raises(ClashError, match="sharpness-aware and another both take the gradient anew"):
        build("fedsam").plus(Another())
