"""Li et al., ICML 2021, Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base import tree
from fedshift.core.method import Method
from fedshift.core.net import load
from fedshift.engine.round import exchange
from fedshift.methods.ditto import PersonalModel
from fedshift.testing import play, start

NAME = PersonalModel().name


def test_the_shared_branch_is_fedavg(same):
    """Weights, BatchNorm statistics and counters: the second solver leaves no trace in them."""
    fedavg, ditto = play(start("fedavg")), play(start("ditto"))
    same(fedavg.server.shared, ditto.server.shared)


def test_the_personal_branch_with_zero_lam_is_local_training(same, state_of):
    local, ditto = play(start("local")), play(start(Method((PersonalModel(0.0),))))
    for client in local.server.roster:
        same(state_of(local, client, "net"), state_of(ditto, client, NAME))


def test_the_personal_model_starts_at_the_first_received_one(bowls, state_of):
    """The task is flat here, so in round 1 nothing pulls the branch away from theta."""
    session = play(bowls.start(PersonalModel(0.9)), 1)
    np.testing.assert_array_equal(state_of(session, "left-0", NAME)["bowl.w"].numpy(), bowls.w)


def test_the_personal_model_is_pulled_to_the_received_one(bowls, state_of, replies):
    """v <- v - lr lam (v - w), three steps a round: the gap shrinks by (1 - lr lam)^3."""
    lam, lr = 0.9, 0.1
    session = bowls.start(PersonalModel(lam), lr=lr)
    v = bowls.w
    for _ in range(3):
        received = session.server.shared["bowl.w"].numpy().astype(np.float64)
        play(session, 1)
        v = received + (1 - lr * lam) ** 3 * (v - received)
    np.testing.assert_allclose(state_of(session, "left-0", NAME)["bowl.w"].numpy(), v, rtol=1e-5)


def test_the_pull_is_half_lam_times_the_squared_distance(bowls, replies):
    """Logged before the step: after round 1 the branch is still at theta_0 when round 2 opens."""
    session = play(bowls.start(PersonalModel(0.9), steps=1), 2)
    (update,) = (u for u in replies(session, 2) if u.client == "left-0")
    (messages,) = (
        m
        for m in session.transport.seen
        if m.task == "train" and m.round == 2 and m.client == "left-0" and not hasattr(m, "steps")
    )
    gap = messages.shared["bowl.w"].numpy() - bowls.w
    assert update.metrics[NAME] == pytest.approx(0.5 * 0.9 * (gap**2).sum(), rel=1e-5)


def test_the_scored_model_is_the_personal_one(state_of):
    session = play(start("ditto"), 2)
    server, net = session.server, session.server.net
    scored = exchange(server, session.transport, "score", sorted(server.roster), session.record)
    for update in scored:
        x, y = session.federation.sites[update.client].data.test.take(torch.arange(16))
        losses = {}
        for name, entries in (
            ("personal", state_of(session, update.client, NAME)),
            ("shared", server.shared),
        ):
            load(net, entries)
            with torch.no_grad():
                losses[name] = float(F.cross_entropy(net.eval()(x).logits, y, reduction="sum"))
        assert update.metrics["test/loss"] == pytest.approx(losses["personal"], rel=1e-5)
        assert abs(losses["personal"] - losses["shared"]) > 1e-3


def test_the_shared_model_is_scored_where_there_is_no_personal_one():
    session = play(start("ditto"), 1)
    net = session.server.net
    load(net, session.server.shared)
    x, _ = session.federation.unseen.test.take(torch.arange(16))
    net.eval()
    assert torch.equal(
        session.server.method.predict(net, session.server.scoring(), x), net(x).logits
    )


def test_nothing_of_the_personal_model_travels(state_of):
    session = play(start("ditto"), 2)
    assert not any(m.payload or m.personal for m in session.transport.seen)
    shared = session.server.shared
    assert tree.nbytes(state_of(session, "dark-0", NAME)) == tree.nbytes(shared)
