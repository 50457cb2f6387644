"""Hsu et al., 2019, and Reddi et al., ICLR 2021, Algorithm 2."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from fedshift.core.aggregate import Add, Mean
from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.methods.fedavgm import Momentum
from fedshift.testing import play, start

SIZES = {"bright-0": 7, "bright-1": 6, "dark-0": 11, "dark-1": 11}  # 22 and 13 samples, dealt


def drifted(server, round_, scale=0.1):
    """Updates whose parameters drift by known amounts, and whose buffers are known as well."""
    rng = np.random.default_rng(round_)
    out = []
    for i, (client, n) in enumerate(SIZES.items()):
        shared = {
            k: v + torch.from_numpy(scale * rng.normal(size=v.shape)).float()
            if v.is_floating_point()
            else torch.tensor(10 * i + round_)
            for k, v in server.shared.items()
        }
        out.append(Update(client, "train", round_, shared, examples=n, steps=1))
    return out


def mean_of(updates, key):
    """Examples-weighted mean in float64."""
    p = np.array([u.examples for u in updates]) / sum(u.examples for u in updates)
    return sum(
        w * u.shared[key].numpy().astype(np.float64) for w, u in zip(p, updates, strict=True)
    )


def two_rounds(whole):
    """(updates, shared before, shared after) of two rounds under ``whole``."""
    server = start(whole).server
    out = []
    for round_ in (1, 2):
        updates = drifted(server, round_)
        before = server.shared
        server.round, server.participants = round_, len(updates)
        server.shared = whole.aggregate(server, updates)
        out.append((updates, before, server.shared))
    return server, out


def momentum(theta, mean, state, *, beta, lr):
    v = beta * state.get("v", 0.0) + (mean - theta)
    return theta + lr * v, {"v": v}


def adaptive(theta, mean, state, *, kind, lr, b1, b2, tau):
    delta = mean - theta
    m = b1 * state.get("m", 0.0) + (1 - b1) * delta
    v = state.get("v", np.full_like(theta, tau**2))
    if kind == "fedadagrad":
        v = v + delta**2
    elif kind == "fedadam":
        v = b2 * v + (1 - b2) * delta**2
    else:
        v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
    return theta + lr * m / (np.sqrt(v) + tau), {"m": m, "v": v}


def follows(whole, step, rtol=1e-4):
    """Two rounds of ``whole`` are two rounds of the recursion ``step`` on every parameter.

    float32 against float64: theta is stored with 6e-8 relative error, Delta is a difference of
    such numbers, hence 1e-4 of the step and not 1e-6.
    """
    server, rounds = two_rounds(whole)
    for key in server.parameters:
        state = {}
        for updates, before, after in rounds:
            theta = before[key].numpy().astype(np.float64)
            expected, state = step(theta, mean_of(updates, key), state)
            moved = after[key].numpy().astype(np.float64) - theta
            np.testing.assert_allclose(moved, expected - theta, rtol=rtol, atol=1e-6)


def test_fedavgm_with_zero_beta_is_fedavg(same):
    fedavg = play(start("fedavg"), 2)
    fedavgm = play(start(build("fedavgm", beta=0.0)), 2)
    same(fedavg.server.shared, fedavgm.server.shared)


@pytest.mark.parametrize(("beta", "lr"), [(0.9, 1.0), (0.5, 0.3), (0.0, 0.5)])
def test_fedavgm_accumulates_the_mean_update(beta, lr):
    follows(build("fedavgm", beta=beta, lr=lr), partial(momentum, beta=beta, lr=lr))


@pytest.mark.parametrize("kind", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_servers_follow_algorithm_2(kind):
    values = {"lr": 0.05, "b1": 0.8, "b2": 0.9, "tau": 0.01}
    follows(build(kind, **values), partial(adaptive, kind=kind, **values))


@pytest.mark.parametrize("kind", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_servers_start_at_tau_squared(kind):
    """With tau far above Delta, sqrt(v) stays tau, and the step is lr (1 - b1) Delta / (2 tau)."""
    tau = 1e3
    whole = build(kind, lr=1.0, b1=0.5, tau=tau)
    server, rounds = two_rounds(whole)
    updates, before, _ = rounds[0]
    fresh = start(whole).server
    after = whole.aggregate(fresh, updates)
    for key in server.parameters:
        delta = mean_of(updates, key) - before[key].numpy()
        moved = after[key].numpy() - before[key].numpy()
        # theta is about 1 in float32: 1e-7 is the last bit of the difference
        np.testing.assert_allclose(moved, 0.5 * delta / (2 * tau), atol=2e-7)
        v = fresh.state[whole.aggregate.optimiser.name][f"v/{key}"].numpy()
        np.testing.assert_allclose(v, tau**2, rtol=0.05)


def test_the_papers_defaults():
    for kind in ("fedadagrad", "fedadam", "fedyogi"):
        optimiser = build(kind).aggregate.optimiser
        assert (optimiser.b1, optimiser.b2, optimiser.tau, optimiser.lr) == (0.9, 0.99, 1e-3, 0.01)
    assert build("fedavgm").aggregate.optimiser == Momentum(lr=1.0, beta=0.9)


def test_a_server_learning_rate_goes_that_far_towards_the_mean():
    whole = build("fedavg").with_(aggregate=Mean(optimiser=Add(0.25)))
    follows(whole, lambda theta, mean, _: (theta + 0.25 * (mean - theta), {}))


@pytest.mark.parametrize("kind", ["fedavgm", "fedadagrad", "fedadam", "fedyogi", "feddyn"])
def test_server_optimisers_leave_buffers_and_counters_alone(kind):
    whole = build(kind)
    server, rounds = two_rounds(whole)
    updates, _, after = rounds[1]
    weights = np.full(4, 0.25) if kind == "feddyn" else np.array(list(SIZES.values())) / 35
    for key, value in after.items():
        assert value.dtype == server.initial[key].dtype
        if key.endswith("num_batches_tracked"):
            assert int(value) == 32  # the largest of 2, 12, 22 and 32, never their mean
        elif key not in server.parameters:
            rows = np.stack([u.shared[key].numpy() for u in updates])
            np.testing.assert_allclose(value.numpy(), weights @ rows, rtol=1e-5, atol=1e-6)
    kept = {k.rpartition("/")[2] for name in server.state for k in server.state[name]}
    assert kept == set(server.parameters)
