"""How the examples train: perturbed steps, mixtures, and an encoder that stays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedshift import Batch, Step, call
from fedshift.core.net import load
from fedshift.testing import play, start, worker

SMALL = {"rounds": 2, "steps": 3}


# HarmoFL


def test_a_perturbation_of_length_zero_is_fedavg(same):
    ours, plain = play(start("example-harmofl[alpha=0]", **SMALL)), play(start("fedavg", **SMALL))
    same(ours.server.shared, plain.server.shared)


def test_the_perturbed_gradient_of_a_quadratic(part, stub):
    """F = a/2 |w - b|^2: the gradient at w + alpha g/|g| is a (w + alpha g/|g| - b)."""
    a, alpha = np.array([1.0, 4.0]), 0.3
    w, b = np.array([0.5, -0.25]), np.array([3.0, 1.0])
    net = nn.Module()
    net.w = nn.Parameter(torch.tensor(w))
    quadratic = lambda _: 0.5 * (torch.tensor(a) * (net.w - torch.tensor(b)).square()).sum()  # noqa: E731
    quadratic(None).backward()
    part(f"example-harmofl[alpha={alpha}]").edit_gradients(
        stub(net=net, objective=quadratic), SimpleNamespace(batch=None)
    )
    g = a * (w - b)
    expected = a * (w + alpha * g / np.linalg.norm(g) - b)
    np.testing.assert_allclose(net.w.grad.numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(net.w.detach().numpy(), w)


def test_one_step_of_harmofl_in_a_run():
    """One client, one batch of all samples: w - lr grad F(w + delta), by functions of torch."""
    lr, alpha = 0.1, 0.2
    plain = {"backbone": "mlp", "backbone_options": {"hidden": 6, "features": 5, "norm": "none"}}
    session = start(
        f"example-harmofl[alpha={alpha}]", domains=("dark",), steps=1, lr=lr, batch_size=64,
        rounds=1, partition={"kind": "per-domain"}, **plain,
    )  # fmt: skip
    before, net = dict(session.server.shared), session.server.net
    data = session.federation.sites["dark-0"].data.train
    x, y = data.take(torch.arange(len(data)))

    def gradient(w):
        leaves = {k: v.clone().requires_grad_() for k, v in w.items()}
        loss = F.cross_entropy(call(net, leaves, x).logits, y)
        return dict(zip(w, torch.autograd.grad(loss, [*leaves.values()]), strict=True))

    g = gradient(before)
    length = np.sqrt(sum(float(v.square().sum()) for v in g.values()))
    uphill = gradient({k: w + alpha * g[k] / length for k, w in before.items()})
    play(session)
    for key, w in before.items():
        expected = (w - lr * uphill[key]).numpy()
        np.testing.assert_allclose(session.server.shared[key].numpy(), expected, atol=2e-6)
    moved = max(float((uphill[k] - g[k]).abs().max()) for k in g)
    assert lr * moved > 1e-4  # it is not the plain gradient


# APFL


def test_the_shared_model_of_apfl_is_fedavg(same):
    plain = play(start("fedavg", **SMALL))
    same(plain.server.shared, play(start("example-apfl", **SMALL)).server.shared)


def test_apfl_with_a_of_one_is_local_training(same, state_of, part):
    ours = play(start("example-apfl[alpha=1,learn=False]", **SMALL))
    local, name = play(start("local", **SMALL)), part("example-apfl").name
    for client in local.server.roster:
        own = dict(state_of(ours, client, name))
        assert float(own.pop("a")) == 1.0
        same(own, state_of(local, client, "net"))
    assert personal(ours) == personal(local)


def personal(session):
    return session.record.metrics[-1]["scores"]["personal"]


def test_apfl_with_a_of_zero_scores_the_shared_model():
    """Without BatchNorm, whose statistics are the mixture's own."""
    given = SMALL | {"backbone_options": {"width": 4, "norm": "none"}}
    ours, plain = (play(start(m, **given)) for m in ("example-apfl[alpha=0,learn=False]", "fedavg"))
    assert personal(ours) == personal(plain)


def mixing(part, stub, a):
    """A part, a client whose v is not w, a batch, and v and w."""
    ours = part("example-apfl")
    session = start("example-apfl", backbone_options={"width": 4, "norm": "none"})
    net, generator = worker(session).net, torch.Generator().manual_seed(1)
    shared = {k: v.clone() for k, v in net.state_dict().items()}
    own = {k: v + 0.1 * torch.randn(v.shape, generator=generator) for k, v in shared.items()}
    client = stub(net=net, received=shared)
    client.state[ours.name] = own | {"a": torch.tensor(a)}
    ours.begin(client)
    batch = Batch(*session.federation.sites["dark-0"].data.train.take(torch.arange(8)))
    return ours, client, batch, own, shared


def test_gradients_of_the_mixture(part, stub):
    """dF/dv = a grad F(v bar) and dF/da = <v - w, grad F(v bar)>, at v bar = a v + (1 - a) w."""
    a = 0.3
    ours, client, batch, own, shared = mixing(part, stub, a)
    step = Step(batch, ours.forward(client, batch), ours.name)
    (loss,) = ours.objective(client, step).values()
    loss.backward()
    net = client.net
    assert all(p.grad is None for p in net.parameters())  # w learns from its own loss alone
    load(net, {k: a * own[k] + (1 - a) * shared[k] for k in own})
    F.cross_entropy(net(batch.x).logits, batch.y).backward()
    trained, inner = dict(ours.trained(client)), 0.0
    for key, p in net.named_parameters():
        np.testing.assert_allclose(trained[key].grad.numpy(), a * p.grad.numpy(), atol=1e-6)
        inner += ((own[key] - shared[key]).numpy() * p.grad.numpy()).sum()
    assert float(trained["a"].grad) == pytest.approx(inner, rel=1e-3)


@pytest.mark.parametrize(("stepped", "expected"), [(-0.2, 0.0), (1.4, 1.0), (0.6, 0.6)])
def test_a_is_put_back_into_its_range_and_can_leave_the_edge(part, stub, stepped, expected):
    ours, client, batch, *_ = mixing(part, stub, stepped)
    F.cross_entropy(ours.forward(client, batch).logits, batch.y).backward()
    a = dict(ours.trained(client))["a"]
    assert float(a.detach()) == pytest.approx(expected)
    assert float(a.grad) != 0


# the frozen encoder

FROZEN = "example-frozen-encoder"


def adapted(session):
    """Names of the entries that may move: the head's and the adapter's."""
    own = [k for k in session.server.initial if k.startswith(("head.", "extra.example-adapter."))]
    assert len(own) == 4
    return set(own)


@pytest.mark.parametrize("scored", ["aggregated", "trained"])
def test_a_frozen_encoder_is_in_no_message_and_in_no_file(scored, tmp_path):
    """By name and by value, with the sites' previous models kept as well."""
    session = play(start(f"{FROZEN} + model-contrast", path=tmp_path, scored=scored, **SMALL))
    own = adapted(session)
    encoder = {k: v for k, v in session.server.initial.items() if k not in own}
    assert len(encoder) > 4
    for message in session.transport.seen:
        for section in message.sections():
            assert not encoder.keys() & section.keys()
    for path in tmp_path.rglob("*.safetensors"):
        held = path.read_bytes()
        for key, value in encoder.items():
            assert key.encode() not in held, path.name
            if value.numel() > 4:
                assert value.numpy().tobytes() not in held, f"{key} in {path.name}"
    assert list(tmp_path.rglob("*.safetensors"))


def test_a_frozen_encoder_never_changes_and_the_rest_does():
    session = start(FROZEN, **SMALL)
    before = {k: v.clone() for k, v in worker(session).net.state_dict().items()}
    play(session)
    after, own = worker(session).net.state_dict(), adapted(session)
    for key, value in before.items():
        assert torch.equal(value, after[key]) == (key not in own), key


def test_the_adapter_is_the_identity_at_first():
    ours, plain = start(FROZEN), start("fedavg")
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = (s.server.net.eval()(x).logits for s in (ours, plain))
    assert torch.equal(a, b)


def test_logits_are_linear_in_the_frozen_features(part):
    """logits = H (z + A z + b) + c with the fixed features z, by NumPy."""
    session = play(start(FROZEN, **SMALL))
    net = session.server.net
    load(net, session.server.shared)
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    name = part(FROZEN).name
    with torch.no_grad():
        found = net.eval()(x).logits.numpy()
        net.skipped = frozenset({name})
        z = net(x).features.numpy()
    w = {k: v.numpy() for k, v in session.server.shared.items()}
    inner = z + z @ w[f"extra.{name}.linear.weight"].T + w[f"extra.{name}.linear.bias"]
    np.testing.assert_allclose(found, inner @ w["head.weight"].T + w["head.bias"], atol=1e-5)
