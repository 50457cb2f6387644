"""Byzantine-robust rules against NumPy, closed forms and their breakdown points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError
from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.engine.preflight import check_needs, check_protection
from fedshift.methods.robust.coordinates import Median, TrimmedMean
from fedshift.methods.robust.geometric_median import GeometricMedian, weiszfeld
from fedshift.methods.robust.krum import Krum, MultiKrum, krum_scores
from fedshift.methods.robust.norm_clip import NormClip
from fedshift.testing import play, start, tiny_scenario

RULES = ["median", "trimmed-mean", "krum", "multi-krum", "norm-clip", "geometric-median"]


def updates_of(server, vectors, examples=None):
    """One update per row of ``vectors`` (n, P), split over the server's parameters in order."""
    keys, out = sorted(server.parameters), []
    for i, row in enumerate(vectors):
        shared, at = dict(server.shared), 0
        for key in keys:
            n = shared[key].numel()
            shared[key] = torch.from_numpy(row[at : at + n]).float().view(shared[key].shape)
            at += n
        n = 1 if examples is None else examples[i]
        out.append(Update(f"s{i}", "train", 1, shared, examples=n, steps=1))
    return out


def flat(server, entries):
    return np.concatenate([entries[k].double().numpy().ravel() for k in sorted(server.parameters)])


@pytest.fixture
def server():
    return start("fedavg").server


@pytest.fixture
def around(server):
    """Updates near the server's model: ``around(n)`` (n, P)."""
    rng, theta = np.random.default_rng(0), flat(server, server.shared)
    return lambda n, spread=0.1: theta + spread * rng.normal(size=(n, len(theta)))


@pytest.mark.parametrize("n", [4, 5])
def test_median_is_numpys_in_every_coordinate(server, around, n):
    vectors = around(n).astype(np.float32)
    new = Median()(server, updates_of(server, vectors))
    np.testing.assert_allclose(flat(server, new), np.median(vectors, axis=0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("n", "trim", "k"), [(5, 0.2, 1), (4, 0.2, 1), (30, 0.1, 3), (7, 0.5, 3)])
def test_trimmed_mean_leaves_out_k_values_at_each_end(server, around, n, trim, k):
    vectors = around(n).astype(np.float32)
    new = TrimmedMean(trim=trim)(server, updates_of(server, vectors))
    expected = np.sort(vectors.astype(np.float64), axis=0)[k : n - k].mean(axis=0)
    np.testing.assert_allclose(flat(server, new), expected, rtol=1e-6, atol=1e-7)


def test_without_trimming_it_is_the_uniform_mean(server, around):
    vectors = around(4)
    new = TrimmedMean(trim=0.0)(server, updates_of(server, vectors, [1, 50, 3, 9]))
    np.testing.assert_allclose(flat(server, new), vectors.mean(axis=0), rtol=1e-5, atol=1e-6)


def krum_by_hand(vectors, f):
    """Blanchard et al., section 4, with explicit distances."""
    n = len(vectors)
    scores = []
    for i in range(n):
        squares = sorted(((vectors[i] - vectors[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(squares[: n - f - 2]))
    return np.array(scores)


def test_krum_scores_are_sums_over_the_nearest_others():
    vectors = np.random.default_rng(1).normal(size=(9, 6))
    found = krum_scores(torch.from_numpy(vectors @ vectors.T), 2)
    np.testing.assert_allclose(found.numpy(), krum_by_hand(vectors, 2), rtol=1e-9)


def test_krum_takes_one_update_as_it_is_and_multi_krum_the_mean_of_the_best(server, around):
    vectors = around(7).astype(np.float32).astype(np.float64)
    order = krum_by_hand(vectors, 2).argsort()
    one = Krum(attackers=0.2)(server, updates_of(server, vectors))  # f = ceil(1.4) = 2
    np.testing.assert_array_equal(flat(server, one), vectors[order[0]])
    many = MultiKrum(attackers=0.2)(server, updates_of(server, vectors))
    expected = vectors[order[:5]].mean(axis=0)
    np.testing.assert_allclose(flat(server, many), expected, rtol=1e-5, atol=1e-6)


def test_norm_clip_shortens_long_updates_to_the_bound(server):
    theta = flat(server, server.shared)
    units = np.eye(len(theta))[:3]
    vectors = theta + np.array([0.5, 2.0, 8.0])[:, None] * units
    for rule, bound in ((NormClip(norm=1.0), 1.0), (NormClip(), 2.0)):  # 0: the median norm
        moved = flat(server, rule(server, updates_of(server, vectors))) - theta
        expected = np.minimum([0.5, 2.0, 8.0], bound) / 3
        np.testing.assert_allclose(moved[:3], expected, rtol=1e-4)
        np.testing.assert_allclose(moved[3:], 0.0, atol=1e-6)


def test_sites_that_do_not_move_leave_the_model_where_it_is(server):
    vectors = np.stack([flat(server, server.shared)] * 3)
    for rule in (NormClip(), GeometricMedian(), Median(), Krum()):
        new = flat(server, rule(server, updates_of(server, vectors)))
        np.testing.assert_allclose(new, vectors[0], rtol=1e-6, atol=1e-7)


def test_geometric_median_of_points_on_a_line_is_their_median():
    points = torch.tensor([0.0, 1.0, 2.0, 10.0, 1e6], dtype=torch.float64)
    b = weiszfeld(torch.outer(points, points), torch.full((5,), 0.2, dtype=torch.float64), 1e-9)
    assert float(b @ points) == pytest.approx(2.0, abs=1e-4)


def test_geometric_median_of_a_triangle_is_its_fermat_point():
    """Seen from it, the corners of a triangle with angles below 120 degrees are 120 apart."""
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]])
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    b = weiszfeld(torch.from_numpy(corners @ corners.T), third, 1e-9).numpy()
    rays = corners - b @ corners
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    np.testing.assert_allclose(rays @ rays.T, 1.5 * np.eye(3) - 0.5, atol=1e-6)


def test_geometric_median_heeds_its_weights():
    """Two points: the heavier one is the minimum of w_1 |v - a| + w_2 |v - b|."""
    points = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    b = weiszfeld(torch.outer(points, points), torch.tensor([0.7, 0.3], dtype=torch.float64), 1e-6)
    assert float(b @ points) == pytest.approx(-1.0, abs=1e-4)


@pytest.mark.parametrize("size", [1e3, 1e9, 3e38])
@pytest.mark.parametrize("method", RULES)
def test_two_hostile_sites_of_nine_cannot_carry_the_model_away(server, around, method, size):
    honest = around(7)
    hostile = np.full((2, honest.shape[1]), size)
    hostile[:, ::2] *= -1
    whole = build(method, **({"attackers": 0.25} if "krum" in method else {}))
    if method == "trimmed-mean":
        whole = build(method, trim=0.25)
    updates = updates_of(server, np.concatenate([hostile, honest]))
    new = flat(server, whole.aggregate(server, updates))
    assert np.isfinite(new).all()
    spread = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert np.linalg.norm(new - honest.mean(axis=0)) < 2 * spread
    mean = flat(server, build("fedavg").aggregate(server, updates))
    assert not np.linalg.norm(mean - honest.mean(axis=0)) < 2 * spread  # inf or far away


@pytest.mark.parametrize(("hostile", "inside"), [(4, True), (5, False)])
def test_medians_break_down_at_half(server, around, hostile, inside):
    """n = 9: four of nine move a median within the honest range only, five anywhere."""
    honest = around(9 - hostile)
    far = np.full((hostile, honest.shape[1]), 1e6)
    updates = updates_of(server, np.concatenate([far, honest]))
    new = flat(server, Median()(server, updates))
    within = (new >= honest.min(axis=0) - 1e-6) & (new <= honest.max(axis=0) + 1e-6)
    assert within.all() == inside
    centre = flat(server, GeometricMedian()(server, updates))
    near = np.linalg.norm(centre - honest.mean(axis=0)) < 1e3
    assert near == inside


@pytest.mark.parametrize(("trim", "inside"), [(0.3, True), (0.2, False)])
def test_trimmed_mean_stands_as_many_as_it_trims(server, around, trim, inside):
    honest = around(7)
    updates = updates_of(server, np.concatenate([np.full((3, honest.shape[1]), 1e6), honest]))
    new = flat(server, TrimmedMean(trim=trim)(server, updates))
    within = (new >= honest.min(axis=0) - 1e-6) & (new <= honest.max(axis=0) + 1e-6)
    assert within.all() == inside


@pytest.mark.parametrize("method", RULES)
def test_a_claim_of_many_examples_buys_no_influence(server, around, method):
    vectors = around(5)
    plain = build(method).aggregate(server, updates_of(server, vectors))
    claimed = build(method).aggregate(server, updates_of(server, vectors, [10**9, 1, 1, 1, 1]))
    assert all(torch.equal(plain[k], claimed[k]) for k in plain)


@pytest.mark.parametrize("method", RULES)
def test_statistics_are_no_open_door(method):
    """A hostile site that sends honest weights and wild BatchNorm statistics and counters."""
    server = start(method).server
    rng = np.random.default_rng(0)
    size = len(flat(server, server.shared))
    honest = flat(server, server.shared) + 0.1 * rng.normal(size=(5, size))
    honest[0] += 1.0  # far enough for Krum to see it
    updates = updates_of(server, honest)
    buffers = server.shared.keys() - server.parameters
    assert buffers
    updates[0].shared.update(
        {k: torch.full_like(v, 10**9) for k, v in updates[0].shared.items() if k in buffers}
    )
    new = build(method).aggregate(server, updates)
    for key in buffers:
        assert torch.equal(new[key], server.shared[key]), key


def test_the_server_optimiser_sees_parameters_only(server, around):
    rule = MultiKrum(optimiser=build("fedavgm").aggregate.optimiser)
    play_on = start("fedavg").server
    size = len(flat(play_on, play_on.shared))
    rule(play_on, updates_of(play_on, np.zeros((4, size))))
    assert play_on.state["momentum"].keys() == play_on.parameters


@pytest.mark.parametrize("method", RULES)
def test_secure_aggregation_refuses_the_rule_by_name(method):
    session = start("fedavg")
    session.server.method = build(f"{method} + secure-aggregation")
    with pytest.raises(ConfigError, match=f"secure-aggregation cannot be used here: {method} "):
        check_protection(session.server)


def test_krum_needs_three_sites():
    with pytest.raises(ConfigError, match="krum compares clients and needs at least 3"):
        check_needs(build("krum"), tiny_scenario(domains=("dark",)), 2)


def test_median_of_a_federation_of_quadratics(bowls):
    """One step from w: the new model is the median of w - lr a_k (w - b_k)."""
    three = ("left", "right", "far")
    session = play(bowls.start(aggregate=Median(), domains=three, steps=1), 1)
    steps = [bowls.w - 0.1 * bowls.a[k] * (bowls.w - bowls.b[k]) for k in three]
    found = session.server.shared["bowl.w"].numpy()
    np.testing.assert_allclose(found, np.median(steps, axis=0), rtol=1e-5)
    assert math.isfinite(found.sum())
