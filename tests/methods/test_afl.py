"""Mohri et al., ICML 2019."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.engine.preflight import check_needs
from fedshift.methods.afl import ascend
from fedshift.testing import play, start, tiny_scenario

CLIENTS = ("bright-0", "bright-1", "dark-0", "dark-1")


def told(losses):
    """Updates that carry these losses and nothing else."""
    return [
        Update(c, "train", 1, payload={"loss-probe/loss": torch.tensor(v, dtype=torch.float64)})
        for c, v in zip(CLIENTS, losses, strict=True)
    ]


def test_with_zero_gamma_afl_is_the_uniform_mean(same):
    uniform = play(start("fedavg", weights="uniform"), 2)
    agnostic = play(start(build("afl", gamma=0.0)), 2)
    same(uniform.server.shared, agnostic.server.shared)


def test_both_players_move_at_once(same):
    """Round 1 is the uniform mean whatever gamma is; the losses of round 1 count in round 2."""
    uniform = play(start("fedavg", weights="uniform"), 1)
    session = play(start(build("afl", gamma=0.5)), 1)
    same(uniform.server.shared, session.server.shared)
    kept = session.server.state["agnostic-weights"]
    assert len({float(w) for w in kept.values()}) > 1


def test_the_ascent_is_a_step_and_a_shift_while_all_weights_stay_positive():
    """Then the projection subtracts the mean step: lam + gamma (F - mean F)."""
    lam, losses = np.array([0.4, 0.3, 0.2, 0.1]), np.array([1.0, 2.0, 0.5, 2.5])
    found = ascend(torch.from_numpy(lam), torch.from_numpy(losses), 0.05)
    np.testing.assert_allclose(found.numpy(), lam + 0.05 * (losses - losses.mean()), rtol=1e-12)


def test_weights_of_three_rounds_follow_the_algorithm():
    whole = build("afl", gamma=0.5)
    server = start(whole).server
    rounds = ((2.0, 0.5, 1.0, 3.0), (0.1, 1.0, 0.2, 0.3), (0.0, 0.0, 0.0, 0.0))
    expected = [
        [0.25, 0.25, 0.25, 0.25],
        # 0.25 + 0.5 F is (1.25, 0.5, 0.75, 1.75); less 1 and, where below zero, nothing
        [0.25, 0.0, 0.0, 0.75],
        # (0.3, 0.5, 0.1, 0.9) has the sum 1.8: less 0.2 each, and 0.1 falls out; then 0.7 / 3
        [0.3 - 0.7 / 3, 0.5 - 0.7 / 3, 0.0, 0.9 - 0.7 / 3],
    ]
    for losses, weights in zip(rounds, expected, strict=True):
        found = whole.aggregate.weights(server, told(losses))
        np.testing.assert_allclose(found.numpy(), weights, atol=1e-12)


def test_a_client_with_weight_zero_comes_back_when_its_loss_is_large():
    lam = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = ascend(lam, torch.tensor([0.0, 3.0], dtype=torch.float64), 0.1)
    np.testing.assert_allclose(found.numpy(), [0.85, 0.15], rtol=1e-12)


def test_sampled_clients_are_refused():
    with pytest.raises(ConfigError, match="agnostic-weights needs every client in every round"):
        check_needs(build("afl"), tiny_scenario(clients_per_round=2), 4)
