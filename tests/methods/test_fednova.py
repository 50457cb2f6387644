"""Wang et al., NeurIPS 2020."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.engine.preflight import check_needs
from fedshift.methods.fednova import NormalisedMean, effective_steps
from fedshift.testing import play, start, tiny_scenario

CLIENTS = ("bright-0", "bright-1", "dark-0", "dark-1")


def test_with_equal_steps_fednova_is_fedavg():
    fedavg, fednova = play(start("fedavg", steps=3), 2), play(start("fednova", steps=3), 2)
    for key, value in fedavg.server.shared.items():
        # the old model enters with a coefficient that is zero up to rounding
        torch.testing.assert_close(fednova.server.shared[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("m", [0.0, 0.5, 0.9])
def test_unequal_steps_are_normalised(m):
    whole = build("fednova")
    server = start(whole, momentum=m).server
    rng = np.random.default_rng(0)
    steps, examples = np.array([1, 2, 5, 9]), np.array([3, 8, 1, 4])
    drifts = {k: rng.normal(size=(4, *server.shared[k].shape)) for k in server.parameters}
    updates = []
    for i, client in enumerate(CLIENTS):
        shared = dict(server.shared)
        for k, drift in drifts.items():
            shared[k] = shared[k] + torch.from_numpy(drift[i]).float()
        updates.append(
            Update(client, "train", 1, shared, examples=int(examples[i]), steps=int(steps[i]))
        )
    new = whole.aggregate(server, updates)

    p = examples / examples.sum()
    # ||a||_1: the j-th last gradient enters with 1 + m + ... + m^(j-1)
    tau = np.array([sum(m**i for j in range(s) for i in range(j + 1)) for s in steps])
    for k, drift in drifts.items():
        expected = (p * tau).sum() * np.tensordot(p / tau, drift, axes=1)
        moved = new[k].numpy() - server.shared[k].numpy()
        np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_effective_steps_are_the_sum_of_the_gradients_coefficients(momentum):
    for s in (1, 2, 7, 20):
        buffer, position = np.zeros(s), np.zeros(s)  # coefficients of g_1 ... g_s
        for j in range(s):
            buffer = momentum * buffer
            buffer[j] += 1.0
            position += buffer
        tau = effective_steps(torch.tensor([float(s)], dtype=torch.float64), momentum)
        assert float(tau) == pytest.approx(position.sum(), rel=1e-12)


def test_steps_are_counted_and_normalised_in_a_run(bowls):
    """One epoch: ``far`` takes 3 steps and ``left`` 1; two rounds against NumPy."""
    lr, sizes, steps = 0.1, {"left": 4, "far": 12}, {"left": 1, "far": 3}
    plan = {"domains": ("left", "far"), "epochs": 1, "steps": None, "lr": lr}
    session = play(bowls.start(aggregate=NormalisedMean(), **plan), 2)
    theta = bowls.w
    for _ in range(2):
        direction = np.zeros(2)
        for k, n in sizes.items():
            w = theta
            for _ in range(steps[k]):
                w = w - lr * bowls.a[k] * (w - bowls.b[k])
            direction += n / 16 * (w - theta) / steps[k]
        theta = theta + (4 / 16 * 1 + 12 / 16 * 3) * direction
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), theta, rtol=1e-5)


def test_fednova_refuses_adam():
    with pytest.raises(
        ConfigError, match="normalised-mean holds for momentum or sgd, not for adam"
    ):
        check_needs(build("fednova"), tiny_scenario(optimiser="adam"), 4)
