"""Li et al., ICLR 2020, Algorithm 2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.registry import build
from fedshift.methods.q_ffl import fair_shares
from fedshift.testing import play, start


def algorithm_2(w, models, losses, q, lr):
    """As printed, on flat vectors, with uniform weights."""
    lipschitz = 1 / lr
    deltas = [lipschitz * (w - w_k) for w_k in models]
    h = [q * f ** (q - 1) * (d @ d) + lipschitz * f**q for f, d in zip(losses, deltas, strict=True)]
    step = sum(f**q * d for f, d in zip(losses, deltas, strict=True)) / sum(h)
    return w - step


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_the_step_is_algorithm_2(q):
    rng = np.random.default_rng(1)
    w, models = rng.normal(size=6), rng.normal(size=(4, 6))
    losses = np.array([2.0, 0.5, 1.0, 0.1])
    squares = ((models - w) ** 2).sum(1)
    args = (np.full(4, 0.25), losses, squares)
    c = fair_shares(*map(torch.from_numpy, args), q, 1 / 0.1).numpy()
    np.testing.assert_allclose(
        w + c @ (models - w), algorithm_2(w, models, losses, q, 0.1), rtol=1e-9
    )


def test_with_zero_q_it_is_fedavg(same):
    fedavg = play(start("fedavg", weights="uniform"), 2)
    fair = play(start(build("q-ffl", q=0.0), weights="uniform"), 2)
    same(fedavg.server.shared, fair.server.shared)


def test_with_zero_q_shares_are_the_scenarios_weights():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    other = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(fair_shares(p, other, other, 0.0, 10.0), p)


def test_one_client_at_a_quadratic_takes_a_damped_step():
    """c = 1 / (1 + q L |w - w_k|^2 / F): with q = 1, L = 10, |..|^2 = 0.2 and F = 2, 1 / 2."""
    one = torch.ones(1, dtype=torch.float64)
    assert float(fair_shares(one, 2 * one, 0.2 * one, 1.0, 10.0)) == pytest.approx(0.5)


def test_losses_in_other_units_change_nothing_but_the_damping():
    """Without damping the shares depend on the ratios of the losses alone, also huge ones."""
    p = torch.full((3,), 1 / 3, dtype=torch.float64)
    losses = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    found = [fair_shares(p, losses * unit, 0 * p, 25.0, 10.0) for unit in (1.0, 1e15)]
    powers = np.array([1, 2.0**25, 4.0**25])
    np.testing.assert_allclose(found[0].numpy(), powers / powers.sum(), rtol=1e-12)
    torch.testing.assert_close(found[0], found[1])


def test_a_round_is_algorithm_2_on_the_whole_net(replies):
    session = start(build("q-ffl", q=2.0), weights="uniform", lr=0.1, lr_decay=0.5)
    for round_ in (1, 2):
        keys = sorted(session.server.parameters)
        old = np.concatenate([session.server.shared[k].flatten().double().numpy() for k in keys])
        play(session, 1)
        rows = replies(session, round_)
        models = [
            np.concatenate([u.shared[k].flatten().double().numpy() for k in keys]) for u in rows
        ]
        losses = [float(u.payload["loss-probe/loss"]) for u in rows]
        expected = algorithm_2(old, models, losses, 2.0, 0.1 * 0.5 ** (round_ - 1))
        new = np.concatenate([session.server.shared[k].flatten().numpy() for k in keys])
        np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-6)
