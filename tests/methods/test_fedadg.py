"""Zhang et al., 2021: a discriminator, a model and a generator on each batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.loop import Batch, Step
from fedshift.methods.fedadg.networks import discriminator_loss, judge, new_discriminator
from fedshift.methods.fedadg.reference import GeneratedReference
from fedshift.methods.shared.budget import visit_batches
from fedshift.testing import play, start

NAME = GeneratedReference().name
PLAIN = "fedadg[alpha=1, warm_up={}, smoothing=0]"


def split(entries):
    """Entries of the model, and of the generator."""
    own = {k: v for k, v in entries.items() if k.startswith(f"extra.{NAME}")}
    return {k: v for k, v in entries.items() if k not in own}, own


def verdict(entries, z, y):
    """D as it is written: a projection, leaky ReLU, a sigmoid."""
    e = {k: v.detach().double().numpy() for k, v in entries.items()}
    hidden = np.concatenate([z, y], 1) @ e["projection"].T @ e["first/weight"].T + e["first/bias"]
    out = np.where(hidden > 0, hidden, 0.01 * hidden) @ e["last/weight"].T + e["last/bias"]
    return 1 / (1 + np.exp(-out[:, 0]))


def test_the_discriminator_is_two_layers_on_a_projection_of_norm_1():
    entries = new_discriminator(9, 5, torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(6, 7)), rng.normal(size=(6, 2))
    found = judge({k: v.double() for k, v in entries.items()}, *map(torch.from_numpy, (z, y)))
    np.testing.assert_allclose(found.numpy(), verdict(entries, z, y), rtol=1e-9)
    assert float(entries["projection"].norm()) == pytest.approx(1.0, rel=1e-6)


def test_the_discriminator_wants_1_for_generated_and_0_for_own_features():
    generated, own = np.array([0.9, 0.4]), np.array([0.3, 0.6])
    found = discriminator_loss(*map(torch.from_numpy, (generated, own)))
    assert float(found) == pytest.approx((0.01 + 0.36 + 0.09 + 0.36) / 2, rel=1e-12)


@pytest.mark.parametrize("warm_up", [0, 1])
def test_without_adversary_and_smoothing_it_is_fedavg_with_uniform_weights(same, warm_up):
    model, generator = split(play(start(PLAIN.format(warm_up)), 2).server.shared)
    same(model, play(start("fedavg", weights="uniform"), 2).server.shared)
    first = split(start("fedadg").server.initial)[1]
    moved = [not torch.equal(v, first[k]) for k, v in generator.items()]
    assert all(moved) if warm_up == 0 else not any(moved)


@pytest.fixture
def client(open_client):
    session = play(start("fedadg"), 1)
    session.server.round = 2
    found = open_client(session, "dark-0")
    GeneratedReference().begin(found)
    found.net.train()
    return found


def some(client, n=6):
    x, y = client.site.data.train.take(torch.arange(n))
    return Batch(x, y), 0.7 * np.eye(4)[y.numpy()]


def moved_by(client, term):
    client.net.zero_grad()
    d = client.state[NAME]
    for value in d.values():
        value.grad = None
    term.backward()
    named = [*client.net.named_parameters(), *((f"d/{k}", v) for k, v in d.items())]
    return {k: p.grad for k, p in named if p.grad is not None}


def test_the_model_is_drawn_to_what_the_discriminator_calls_generated(client):
    part, (batch, y) = GeneratedReference(alpha=0.6, smoothing=0.2), some(client)
    out = client.net(batch.x)
    step = Step(batch, out, "model")
    term = part.loss(client, step)
    own = verdict(client.state[NAME], out.features.detach().double().numpy(), y)
    assert float(term.detach()) == pytest.approx(0.4 * ((1 - own) ** 2).mean(), rel=1e-5)
    logits = out.logits.detach().double().numpy()
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    shares = 0.8 * np.eye(4)[batch.y.numpy()] + 0.2 / 4
    task = -(shares * logs).sum(1).mean()
    assert float(part.task_loss(client, step).detach()) == pytest.approx(0.6 * task, rel=1e-5)
    alone = Step(batch, out, "warm-up")
    assert part.loss(client, alone) is None
    assert float(part.task_loss(client, alone).detach()) == pytest.approx(task, rel=1e-5)


def test_discriminator_and_generator_have_opposite_goals_and_move_only_themselves(client):
    part, (batch, y) = GeneratedReference(), some(client)
    seen = part._look(client, batch)
    found = part._tell_apart(client, Step(batch, seen, "discriminator"))[f"{NAME}/discriminator"]
    made = part._generate(client, batch)
    z, g = (v.detach().double().numpy() for v in (seen.features, made.features))
    d = client.state[NAME]
    wanted = ((1 - verdict(d, g, y)) ** 2 + verdict(d, z, y) ** 2).mean()
    assert float(found.detach()) == pytest.approx(wanted, rel=1e-5)
    assert all(k.startswith("d/") for k in moved_by(client, found))
    goal = part._imitate(client, Step(batch, made, "generator"))[f"{NAME}/generator"]
    assert float(goal.detach()) == pytest.approx((verdict(d, g, y) ** 2).mean(), rel=1e-5)
    reached = moved_by(client, goal)
    assert any(k.startswith(f"extra.{NAME}") for k in reached)
    assert not any(k.startswith(("block", "head")) for k in reached)
    torch.testing.assert_close(made.features, part._generate(client, batch).features)


def test_the_visit_is_as_long_as_fedavgs_and_three_tenths_of_it_are_the_task_alone(client, replies):
    first, second = GeneratedReference().phases(client)
    total = visit_batches(client)
    assert (first.steps, second.steps) == (round(0.3 * total), total - round(0.3 * total))
    assert [p.name for p in second.players] == ["discriminator", "model", "generator"]
    steps = [
        {u.client: u.steps for u in replies(play(start(m), 1), 1)} for m in ("fedadg", "fedavg")
    ]
    assert steps[0] == steps[1]


def test_the_discriminator_stays_at_the_client_and_goes_on_from_there(state_of):
    session = play(start("fedadg"), 1)
    one = state_of(session, "dark-0", NAME)
    play(session, 1)
    two = state_of(session, "dark-0", NAME)
    assert torch.equal(one["projection"], two["projection"])
    assert not torch.equal(one["first/weight"], two["first/weight"])
    assert not torch.equal(one["projection"], state_of(session, "dark-1", NAME)["projection"])
    names = {k for m in session.transport.seen for k in (*m.shared, *m.payload)}
    assert not any("projection" in k or "first" in k for k in names)
