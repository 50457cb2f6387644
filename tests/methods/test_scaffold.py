"""Karimireddy et al., ICML 2020, Algorithm 1, option II."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base.errors import ConfigError
from fedshift.core.aggregate import Mean, Uniform
from fedshift.core.net import load
from fedshift.core.registry import build
from fedshift.data.dealing.partitions import PerDomain
from fedshift.engine.preflight import check_needs
from fedshift.methods.scaffold import ControlVariates
from fedshift.testing import play, start, tiny_scenario

EQUAL = {"partition": PerDomain(clients_per_domain=2, samples_per_client=6)}
NAME = ControlVariates().name


def start_scaffold(bowls, **changes):
    return bowls.start(ControlVariates(), aggregate=Mean(Uniform()), **changes)


def test_round_1_is_fedavg(same):
    fedavg, scaffold = play(start("fedavg", **EQUAL), 1), play(start("scaffold", **EQUAL), 1)
    same(fedavg.server.shared, scaffold.server.shared)


def test_the_control_variate_is_the_local_gradient_after_one_step(state_of):
    session = start("scaffold", steps=1, batch_size=64)
    net, initial = session.server.net, session.server.initial
    play(session, 1)
    for site in session.federation.sites.values():
        load(net, initial)
        net.train()
        x, y = site.data.train.take(torch.arange(len(site.data.train)))
        loss = F.cross_entropy(net(x).logits, y)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        kept = state_of(session, site.id, NAME)
        for (key, _), gradient in zip(net.named_parameters(), gradients, strict=True):
            # (x - y) / lr: x is stored to 6e-8, so the quotient is good to about 1e-6
            torch.testing.assert_close(kept[key], gradient, rtol=1e-4, atol=1e-5)


def test_c_is_the_mean_of_all_c_i_with_partial_participation(state_of):
    session = play(start("scaffold", clients_per_round=2))
    c = session.server.state[NAME]
    visited = {m.client for m in session.transport.seen if m.task == "train"}
    assert len(visited) > 2  # the mean is over more than one cohort
    for key, value in c.items():
        total = sum(
            state_of(session, client, NAME)[key].numpy().astype(np.float64) for client in visited
        )
        np.testing.assert_allclose(value.numpy(), total / 4, rtol=1e-4, atol=1e-6)


def test_scaffold_follows_algorithm_1(bowls, state_of):
    """Six rounds, two of three clients in each, a rate that halves: against NumPy."""
    changes = {"domains": ("left", "right", "far"), "clients_per_round": 2, "lr_decay": 0.8}
    session = start_scaffold(bowls, rounds=6, **changes)
    x, c = bowls.w, np.zeros(2)
    c_i = {k: np.zeros(2) for k in ("left", "right", "far")}
    for round_ in range(1, 7):
        play(session, 1)
        lr = 0.1 * 0.8 ** (round_ - 1)
        cohort = session.server.scenario.cohort(0, round_, list(session.server.roster))
        drifts, changed = [], []
        for k in (client.removesuffix("-0") for client in cohort):
            y = x
            for _ in range(3):
                y = y - lr * (bowls.a[k] * (y - bowls.b[k]) - c_i[k] + c)
            new = c_i[k] - c + (x - y) / (3 * lr)
            drifts.append(y - x)
            changed.append(new - c_i[k])
            c_i[k] = new
        x, c = x + np.mean(drifts, axis=0), c + np.sum(changed, axis=0) / 3
    np.testing.assert_allclose(session.server.shared["bowl.w"].numpy(), x, rtol=1e-4)
    np.testing.assert_allclose(
        session.server.state[NAME]["bowl.w"].numpy(), c, rtol=1e-4, atol=1e-5
    )
    for k, value in c_i.items():
        kept = state_of(session, f"{k}-0", NAME)["bowl.w"].numpy()
        np.testing.assert_allclose(kept, value, rtol=1e-4, atol=1e-5)


def test_scaffold_reaches_the_joint_optimum_where_fedavg_drifts(bowls):
    plan = {"rounds": 30, "steps": 10, "lr": 0.05}
    a, b = (np.stack([v["left"], v["right"]]) for v in (bowls.a, bowls.b))
    optimum = (a * b).sum(0) / a.sum(0)
    # FedAvg's own fixed point: w = mean_k [r_k w + (1 - r_k) b_k] with r_k = (1 - lr a_k)^10
    pull = 1 - (1 - 0.05 * a) ** 10
    drifted = (pull * b).sum(0) / pull.sum(0)
    assert np.abs(drifted - optimum).max() > 0.3
    fedavg = play(bowls.start(aggregate=Mean(Uniform()), **plan)).server.shared["bowl.w"]
    scaffold = play(start_scaffold(bowls, **plan)).server.shared["bowl.w"]
    np.testing.assert_allclose(fedavg.numpy(), drifted, atol=1e-4)
    np.testing.assert_allclose(scaffold.numpy(), optimum, atol=1e-4)


def test_at_the_optimum_nothing_moves(bowls, state_of):
    """c_i is the gradient of F_i there, and the corrected gradient of every client is zero."""
    session = play(start_scaffold(bowls, rounds=30, steps=10, lr=0.05))
    w = session.server.shared["bowl.w"].numpy()
    for k in ("left", "right"):
        kept = state_of(session, f"{k}-0", NAME)["bowl.w"].numpy()
        np.testing.assert_allclose(kept, bowls.a[k] * (w - bowls.b[k]), atol=1e-3)


def test_k_counts_the_steps_that_moved_the_shared_parameters(state_of, replies):
    """Under FedRep the body, which is all that is shared, rests while the head is trained."""
    session = start("fedrep + scaffold", epochs=1, batch_size=64)  # one body step a visit
    x = session.server.shared
    play(session, 1)
    for update in replies(session, 1):
        kept = state_of(session, update.client, NAME)
        for key in session.server.parameters:
            gradient = (x[key] - update.shared[key]) / (1 * 0.05)
            torch.testing.assert_close(kept[key], gradient, rtol=1e-5, atol=1e-6)


def test_buffers_get_no_control_variate():
    session = play(start("scaffold"), 1)
    trained = {k for k, _ in session.server.net.named_parameters()}
    assert session.server.state[NAME].keys() == trained


def test_momentum_is_refused_unless_it_is_granted():
    scenario = tiny_scenario(momentum=0.9)
    with pytest.raises(ConfigError, match="control-variates holds for sgd, not for momentum"):
        check_needs(build("scaffold"), scenario, 4)
    check_needs(build("scaffold"), scenario.change(allow=(*scenario.allow, "any_optimiser")), 4)
    check_needs(build("scaffold"), tiny_scenario(), 4)
