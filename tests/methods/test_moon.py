"""Li et al., CVPR 2021, Eq. 3."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base import tree
from fedshift.core.loop import Batch, Step
from fedshift.core.net import Output, load
from fedshift.core.registry import build
from fedshift.methods.moon import ModelContrast, model_contrast
from fedshift.testing import play, start, worker

NAME = ModelContrast().name


def contrast(z, z_glob, z_prev, tau):
    """Eq. 3 as it stands in the paper."""

    def similarity(a, b):
        return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    near = np.exp(similarity(z, z_glob) / tau)
    far = np.exp(similarity(z, z_prev) / tau)
    return -np.log(near / (near + far)).mean()


@pytest.fixture
def features():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(5, 7)) for _ in range(3)]


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_the_contrast_is_equation_3(features, tau):
    found = model_contrast(*map(torch.from_numpy, features), tau)
    assert float(found) == pytest.approx(contrast(*features, tau), rel=1e-9)


def test_equal_references_give_log_2(features):
    z, glob, _ = map(torch.from_numpy, features)
    assert float(model_contrast(z, glob, glob, 0.5)) == pytest.approx(np.log(2))


def visit(session, open_client):
    """A client in round 2 with a previous model, a batch, and the net's output on it."""
    site = worker(session)
    client = open_client(session, "dark-0", site.store.load("dark-0", before=2))
    load(client.net, {k: v * 1.1 for k, v in client.received.items() if v.is_floating_point()})
    client.net.zero_grad()
    x, y = client.site.data.train.take(torch.arange(6))
    return client, Batch(x, y)


def test_near_is_the_received_and_far_the_previous_model(open_client):
    session = play(start("moon"), 1)
    client, batch = visit(session, open_client)
    out = client.net(batch.x)
    term = ModelContrast(mu=3.0, tau=0.4).loss(client, Step(batch, out, "model"))
    references = []
    for entries in (client.received, client.state["previous"]):
        load(session.server.net, entries)
        references.append(session.server.net.eval()(batch.x).features.detach().double().numpy())
    expected = 3.0 * contrast(out.features.detach().double().numpy(), *references, 0.4)
    assert float(term.detach()) == pytest.approx(expected, rel=1e-5)


def test_gradient_flows_to_the_local_features_only(open_client):
    session = play(start("moon"), 1)
    client, batch = visit(session, open_client)
    z = client.net(batch.x).features.detach().requires_grad_()
    step = Step(batch, Output(torch.zeros(6, 4), z), "model")
    ModelContrast().loss(client, step).backward()
    received, previous = (client.reference(n, batch).features for n in ("received", "previous"))
    assert not received.requires_grad
    assert not previous.requires_grad
    assert all(p.grad is None for p in client.net.parameters())
    # central differences of Eq. 3 in the local features, both references held
    fixed = [r.double().numpy() for r in (received, previous)]
    here, h = z.detach().double().numpy(), 1e-5
    for i, j in ((0, 0), (2, 5), (5, 11)):
        step_ = np.zeros_like(here)
        step_[i, j] = h
        slope = (contrast(here + step_, *fixed, 0.5) - contrast(here - step_, *fixed, 0.5)) / (
            2 * h
        )
        assert float(z.grad[i, j]) == pytest.approx(slope, rel=1e-3, abs=1e-7)


def test_the_term_starts_with_a_clients_second_visit(replies):
    session = play(start("moon", clients_per_round=2, rounds=5))
    visits = dict.fromkeys(session.server.roster, 0)
    for round_ in range(1, 6):
        for update in replies(session, round_):
            assert (NAME in update.metrics) is (visits[update.client] > 0)
            visits[update.client] += 1
    assert max(visits.values()) > 1


def test_the_first_round_is_fedavg(same):
    same(play(start("fedavg"), 1).server.shared, play(start("moon"), 1).server.shared)


def test_previous_is_the_clients_model_after_its_last_visit(replies, state_of, same):
    session = play(start("moon", clients_per_round=2, rounds=5))
    last = {u.client: u for round_ in range(1, 6) for u in replies(session, round_)}
    for client, update in last.items():
        same(state_of(session, client, "previous"), update.shared)


def test_references_leave_no_trace(open_client, same):
    session = play(start("moon"), 1)
    client, batch = visit(session, open_client)
    client.net.train()
    before = [tree.clone(t) for t in (client.net.state_dict(), client.received)]
    previous = tree.clone(client.state["previous"])
    client.reference("received", batch)
    client.reference("previous", batch)
    same(before[0], client.net.state_dict())
    same(before[1], client.received)
    same(previous, client.state["previous"])
    assert all(m.training for m in client.net.modules())


def test_the_projector_adds_two_layers_between_body_and_head():
    plain, projected = start("moon"), start(build("moon", projector=True))
    d = plain.server.net.head_module.in_features
    extra = set(projected.server.shared) - set(plain.server.shared)
    assert sum(projected.server.shared[k].numel() for k in extra) == 2 * (d * d + d)
    assert set(plain.server.shared) < set(projected.server.shared)
    net = projected.server.net.eval()
    x, _ = projected.federation.unseen.test.take(torch.arange(4))
    first, _, second = net.extra["projector"].layers
    body = plain.server.net.eval()(x).features  # same seed, same backbone
    z = second(first(body).relu())
    torch.testing.assert_close(net(x).features, z)
    torch.testing.assert_close(net(x).logits, net.head_module(z))
