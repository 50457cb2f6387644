"""Yuan et al., TKDE 2023: acquisition and calibration as parts of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedshift.base import tree
from fedshift.core.aggregate import Mean
from fedshift.core.loop import Batch, Log, Step
from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.methods.csac.acquisition import SemanticAcquisition, longer, smoothed
from fedshift.methods.csac.calibration import CrossLayerCalibration
from fedshift.testing import play, start, tiny_scenario, worker

NAME = CrossLayerCalibration().name
SHORT = {"rounds": 2, "steps": 2, "protocols": ("global",), "evaluate_every": 2}


def softmax(energy):
    return np.exp(energy) / np.exp(energy).sum(1, keepdims=True)


def mmd(x, y):
    """Unbiased MMD^2 of two batches (B, P) with five Gaussian kernels."""
    z, n = np.concatenate([x, y]), len(x)
    squared = ((z[:, None] - z[None]) ** 2).sum(2)
    k = sum(np.exp(-squared / (2 * 3.0**p * squared.mean())) for p in (-3, -2, -1, 0, 1))
    np.fill_diagonal(k, 0)
    crossed = sum(np.exp(-squared[:n, n:] / (2 * 3.0**p * squared.mean())) for p in range(-3, 2))
    return (k[:n, :n].sum() + k[n:, n:].sum()) / (n * (n - 1)) - 2 * crossed.mean()


def test_labels_are_smoothed_as_in_equation_2():
    y = torch.tensor([2, 0])
    expected = [[0.025, 0.025, 0.925, 0.025], [0.925, 0.025, 0.025, 0.025]]
    np.testing.assert_allclose(smoothed(y, 4, 0.1).numpy(), expected, rtol=1e-6)
    mixed = torch.tensor([[0.5, 0.5, 0, 0]])
    np.testing.assert_allclose(smoothed(mixed, 4, 0.2), [[0.45, 0.45, 0.05, 0.05]], rtol=1e-6)


def calibrating(open_client, part):
    """A client of round 2 whose net has moved, its batch, and the output on it."""
    session = play(start(Method((part,), Mean()), **SHORT), 1)
    state = worker(session).store.load("dark-0", before=2)
    client = open_client(session, "dark-0", state)
    client.round = 2
    part.begin(client)
    x, y = client.site.data.train.take(torch.arange(6))
    client.net.train()
    batch = Batch(x, y)
    return client, Step(batch, client.net(x), "model")


@pytest.mark.parametrize("projection", ["separate", "common"])
def test_the_term_is_lambda_times_equation_6(open_client, projection):
    part = CrossLayerCalibration(lam=0.7, projection=projection)
    client, step = calibrating(open_client, part)
    found = part.loss(client, step)
    kept = client.state[NAME]
    net = client.net.eval()
    names = ["block1", "block2", "block3"]
    moved = {k: step.out.taps[k] for k in names}
    with torch.no_grad():
        torch.nn.Module.load_state_dict(net, tree.under("local", kept))
        local = net(step.batch.x).taps
        sides = []
        common = projection == "common"
        for side, taps in (
            ("both" if common else "fused", moved),
            ("both" if common else "local", local),
        ):
            maps = [
                F.conv2d(
                    taps[k],
                    kept[f"projection/{side}/{i}/weight"],
                    kept[f"projection/{side}/{i}/bias"],
                    stride=(4, 2, 1)[i],
                )
                for i, k in enumerate(names)
            ]
            sides.append(np.stack([m.flatten(2).double().numpy() for m in maps]))
    a, b = sides
    position = softmax(np.einsum("lbcd,mbce->lm", a, b) / a[0, 0, 0].size ** 2 / 6)
    channel = softmax(np.einsum("lbcd,mbed->lm", a, b) / a.shape[2] ** 2 / 6)
    gaps = [[mmd(x.reshape(6, -1), y.reshape(6, -1)) for y in b] for x in a]
    expected = 0.7 * ((position + channel) / 2 * np.array(gaps)).sum()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-3)


def projections(client):
    """What ``begin`` has made trainable."""
    return {k: p for k, p in client.state[NAME].items() if isinstance(p, torch.nn.Parameter)}


def test_gradient_reaches_the_model_and_both_projections_but_not_the_local_model(open_client):
    part = CrossLayerCalibration()
    client, step = calibrating(open_client, part)
    part.loss(client, step).backward()
    named = dict(client.net.named_parameters())
    assert float(named["block1.0.weight"].grad.abs().sum()) > 0
    moving = projections(client)
    assert len(moving) == 2 * 3 * 2
    own, other = (moving[f"projection/{side}/0/weight"] for side in ("fused", "local"))
    assert not torch.equal(own, other)
    assert all(p.grad is not None for p in moving.values())
    local = tree.under("local", client.state[NAME])
    assert not any(v.requires_grad for v in local.values())


def test_round_1_has_no_term_and_leaves_the_local_model_for_good(state_of, replies, same):
    session = play(start("csac"), 1)
    first = {u.client: u for u in replies(session, 1)}
    assert all(NAME not in u.metrics for u in first.values())
    play(session)
    for client, update in first.items():
        same(tree.under("local", state_of(session, client, NAME)), update.shared)
    assert all(NAME in u.metrics for u in replies(session, 3))


def test_projections_differ_between_clients_and_rounds_and_are_trained(open_client):
    part = CrossLayerCalibration()
    session = play(start("csac"), 1)
    drawn = []
    for client, round_ in (("dark-0", 2), ("dark-1", 2), ("dark-0", 3)):
        state = worker(session).store.load(client, before=2)
        visit = open_client(session, client, state)
        visit.round = round_
        part.begin(visit)
        drawn.append(visit.state[NAME]["projection/fused/0/weight"].detach())
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:])
    site = worker(session)
    client = open_client(session, "dark-0", site.store.load("dark-0", before=2))
    client.round = 2
    moving = [(f"{NAME}/{k}", p) for k, p in part.begin(client)]
    before = {k: v.detach().clone() for k, v in moving}
    turn = site.training._turn(client, site.method.phases(client)[0].players[0], moving)
    x, y = client.site.data.train.take(torch.arange(6))
    turn.play(Batch(x, y), Log())
    assert before
    assert all(not torch.equal(before[k], v) for k, v in moving)
    assert turn.optimiser.param_groups[0]["lr"] == client.lr


def test_projections_stay_at_the_client_unless_they_are_renewed(state_of):
    session = play(start("csac", **SHORT | {"rounds": 3}), 2)
    before = tree.under("projection", state_of(session, "dark-0", NAME))
    assert len(before) == 2 * 3 * 2
    play(session)
    after = tree.under("projection", state_of(session, "dark-0", NAME))
    shift = [float((after[k] - v).abs().max()) for k, v in before.items()]
    assert min(shift) > 0
    assert max(shift) < 0.1  # trained further by two small steps, not drawn anew
    renewed = play(start("csac[renew=true]", **SHORT | {"rounds": 3}))
    assert not tree.under("projection", state_of(renewed, "dark-0", NAME))
    other = renewed.server.shared
    assert any(not torch.equal(v, other[k]) for k, v in session.server.shared.items())


def test_round_1_is_trained_on_smoothed_labels_and_later_rounds_are_not(open_client):
    session = start("csac")
    part = SemanticAcquisition(smoothing=0.2)
    client = open_client(session, "dark-0")
    batch = Batch(torch.zeros(2, 3, 8, 8), torch.tensor([1, 3]))
    client.round = 1
    torch.testing.assert_close(part.batch(client, batch).y, smoothed(batch.y, 4, 0.2))
    client.round = 2
    assert part.batch(client, batch) is batch


@pytest.mark.parametrize(
    ("budget", "steps", "epochs"),
    [
        ({"steps": 200}, 1800, None),
        ({"epochs": 2}, None, 18),
        ({"steps": 200, "times": 0}, 1, None),
    ],
)
def test_acquisition_is_nine_local_budgets(budget, steps, epochs):
    times = budget.pop("times", 9.0)
    phase = longer(tiny_scenario(**budget), times)
    assert (phase.steps, phase.epochs) == (steps, epochs)


def test_the_acquisition_is_only_in_round_1(replies):
    session = play(start("csac", steps=2), 2)
    assert {u.steps for u in replies(session, 1)} == {18}
    assert {u.steps for u in replies(session, 2)} == {2}


def test_without_its_three_ideas_csac_is_fedavg(same):
    plain = build("csac[smoothing=0, acquisition=1, lam=0] - divergence-fusion")
    same(play(start("fedavg")).server.shared, play(start(plain)).server.shared)


def test_lambda_zero_is_no_calibration(same):
    none = play(start("csac[lam=0]", **SHORT)).server.shared
    same(none, play(start("csac - cross-layer-calibration", **SHORT)).server.shared)
    same(none, play(start("csac[pairing=none]", **SHORT)).server.shared)


@pytest.fixture(scope="module")
def plain():
    """The entries that CSAC as it is leaves."""
    return play(start("csac", **SHORT)).server.shared


@pytest.mark.parametrize(
    "change",
    [
        *("lam=0", "smoothing=0", "acquisition=1", "layers=block2+block3", "channels=2"),
        "projection=common",
        *("pairing=same", "attention=position", "attention=channel", "attention=none"),
        *("discrepancy=mse", "logits=true", "distance=l1", "distance=cosine"),
        *("distance=similarity", "distance=average"),
    ],
)
def test_every_switch_changes_the_run(change, plain):
    other = play(start(f"csac[{change}]", **SHORT)).server.shared
    assert any(not torch.equal(v, other[k]) for k, v in plain.items())


def test_the_released_term_compares_logits(open_client):
    part = CrossLayerCalibration(lam=0.6, pairing="none", logits=True)
    client, step = calibrating(open_client, part)
    found = part.loss(client, step)
    client.net.eval()
    with torch.no_grad():
        client.net.load_state_dict(tree.under("local", client.state[NAME]))
        local = client.net(step.batch.x).logits
    sides = [v.detach().double().numpy() for v in (step.out.logits, local)]
    assert float(found.detach()) == pytest.approx(0.6 * mmd(*sides), rel=1e-3)
    assert not projections(client)


def test_a_batch_of_one_sample_has_no_term(open_client):
    part = CrossLayerCalibration()
    client, _ = calibrating(open_client, part)
    x, y = client.site.data.train.take(torch.arange(1))
    assert part.loss(client, Step(Batch(x, y), client.net.eval()(x), "model")) is None


def test_calibration_stacks_with_other_methods():
    for stack in ("fedrep + cross-layer-calibration", "ditto + cross-layer-calibration"):
        session = play(start(stack, **SHORT | {"protocols": ("personal",)}))
        assert NAME in session.record.metrics[-1]["losses"]
