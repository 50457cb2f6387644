"""Sun et al., NeurIPS 2021: PartialFed-Fix and PartialFed-Adaptive."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base import tree
from fedshift.base.errors import ConfigError
from fedshift.core.registry import build
from fedshift.engine.round import exchange
from fedshift.methods.partialfed.adaptive import LoadingPolicy
from fedshift.methods.partialfed.fixed import SkippedLayers
from fedshift.methods.partialfed.gates import gates, logistic, temperature
from fedshift.testing import everything, play, start, worker

NAME = LoadingPolicy().name
LINEAR = {"backbone": "linear", "backbone_options": {}}


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        ("skip=bn", "fedbn"),
        ("skip=head", "fedper"),
        ("skip=bn+head", "fedbn + private-head"),
        ("skip=top", "fedper"),
        ("skip=bottom, skip_layers=99", "local"),
    ],
)
def test_a_fixed_rule_is_the_method_that_keeps_those_layers(rule, other, same):
    a, b = play(start(f"partialfed-fixed[{rule}]"), 2), play(start(other), 2)
    same(everything(a), everything(b))


def test_layers_are_skipped_from_the_inputs_or_from_the_head():
    net = worker(start("fedavg")).net
    bottom = SkippedLayers(skip="bottom", skip_layers=2).keys(net)
    assert {k.rpartition(".")[0] for k in bottom} == {"block1.0", "block1.1"}
    top = SkippedLayers(skip="top", skip_layers=2).keys(net)
    assert {k.rpartition(".")[0] for k in top} == {"block3.1", "head"}


def test_a_rule_that_skips_nothing_is_refused():
    with pytest.raises(ConfigError, match="no such layer"):
        start("partialfed-fixed[skip=bn]", backbone_options={"norm": "group"})


def test_a_policy_that_loads_everything_is_fedavg(same):
    sure = build("partialfed", load_chance=1.0, policy_epochs=0)
    same(play(start("fedavg")).server.shared, play(start(sure)).server.shared)


def test_a_policy_that_loads_nothing_is_local_training(same, state_of):
    local = play(start("local"))
    never = play(start(build("partialfed", load_chance=0.0, policy_epochs=0)))
    for client in local.server.roster:
        kept = tree.under("own", state_of(never, client, NAME))
        same(state_of(local, client, "net"), kept)


def test_gates_are_one_with_the_probability_of_their_logit_at_any_temperature():
    logits = torch.tensor([-2.0, 0.0, 1.0])
    noise = torch.stack(
        [logistic(3, g) for g in [torch.Generator().manual_seed(0)] for _ in range(4000)]
    )
    for heat in (1.0, 0.1):
        share = gates(logits, noise, heat).mean(0).numpy()
        np.testing.assert_allclose(share, 1 / (1 + np.exp(-logits.numpy())), atol=0.03)


def test_the_gradient_of_a_gate_is_that_of_the_soft_one():
    logits = torch.tensor([0.3, -1.0, 2.0], requires_grad=True)
    noise, slope = torch.tensor([0.5, 0.2, -3.0]), np.array([2.0, -1.0, 5.0])
    a = gates(logits, noise, 0.5)
    assert a.tolist() == [1.0, 0.0, 0.0]
    (a * torch.tensor(slope, dtype=torch.float32)).sum().backward()
    s = 1 / (1 + np.exp(-(logits.detach().numpy() + noise.numpy()) / 0.5))
    np.testing.assert_allclose(logits.grad.numpy(), slope * s * (1 - s) / 0.5, rtol=1e-4)


def test_the_temperature_falls_geometrically():
    assert temperature(1.0, 0.1, 0.0) == 1.0
    assert temperature(1.0, 0.1, 1.0) == pytest.approx(0.1)
    assert temperature(1.0, 0.01, 0.5) == pytest.approx(0.1)


@pytest.mark.parametrize("better", ["own", "shared"])
def test_the_policy_learns_to_load_the_better_layer(open_client, state_of, better):
    """One of the two heads is turned round, so that it prefers wrong classes."""
    method = build("partialfed", policy_lr=0.2, policy_epochs=5)
    session = play(start(method, lr=0.01, **LINEAR), 3)
    kept = state_of(session, "dark-0", NAME)
    bad = {k: -3 * v for k, v in session.server.shared.items()}
    if better == "own":
        session.server.shared = bad
    else:
        kept |= tree.prefixed("own", bad)
    client = open_client(session, "dark-0", {NAME: kept})
    logits = method.parts[0].learnt(client, tree.under("own", kept), torch.zeros(1))
    assert bool(logits > 0.5) if better == "shared" else bool(logits < -0.5)


def test_training_starts_layer_by_layer_from_theta_or_from_ones_own(open_client, state_of):
    """Statistics follow their BatchNorm's gate."""
    session = play(start("partialfed"), 2)
    part = session.server.method.parts[0]
    kept = state_of(session, "dark-0", NAME)
    theta, seen = session.server.shared, set()
    client = open_client(session, "dark-0", {NAME: kept})
    part.begin(client)
    for keys in part.groups(client):
        sources = {
            "theta": all(torch.equal(client.net.state_dict()[k], theta[k]) for k in keys),
            "own": all(torch.equal(client.net.state_dict()[k], kept[f"own/{k}"]) for k in keys),
        }
        assert any(sources.values()), keys
        seen |= {name for name, true in sources.items() if true}
    assert seen == {"theta", "own"}
    own, groups = tree.under("own", kept), part.groups(client)
    for first in (0, 1):  # every other layer is loaded, in both ways
        loaded = [(i + first) % 2 for i in range(len(groups))]
        found = part.mixed(client, own, torch.tensor(loaded).float())
        for gate, keys in zip(loaded, groups, strict=True):
            assert all(torch.equal(found[k], (theta if gate else own)[k]) for k in keys), keys


def test_the_likelier_choice_of_each_layer_is_scored(state_of):
    session = play(start("partialfed"), 3)
    server, net = session.server, session.server.net
    mixed = 0
    for update in exchange(
        server, session.transport, "score", sorted(server.roster), session.record
    ):
        kept = state_of(session, update.client, NAME)
        paths = ["block1.0", "block1.1", "block2.0", "block2.1", "block3.0", "block3.1", "head"]
        skipped = {p for p, logit in zip(paths, kept["logits"], strict=True) if logit < 0}
        mixed += 0 < len(skipped) < len(paths)
        own = {k: v for k, v in tree.under("own", kept).items() if k.rpartition(".")[0] in skipped}
        net.load_state_dict(server.shared | own)
        x, y = session.federation.sites[update.client].data.test.take(torch.arange(16))
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(net.eval()(x).logits, y, reduction="sum")
        assert update.metrics["test/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert mixed
