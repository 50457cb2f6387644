"""Chen et al., CVPR 2024: consistent masks, distance-driven weights, element-wise aggregation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base.errors import ClashError, ConfigError
from fedshift.core.aggregate import ByExamples, Mean
from fedshift.core.message import Update
from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.methods.fedheal import (
    ConsistentMean,
    DistanceWeights,
    consistent,
    distance,
    masked_step,
    next_weights,
)
from fedshift.testing import in_process_equals_bytes, play, start

CLIENTS = ("bright-0", "bright-1", "dark-0", "dark-1")
TAU, BETA = 0.3, 0.4


class Heal:
    """The whole rule in NumPy, weight by weight, from the formulas."""

    def __init__(self, tau=TAU, beta=BETA):
        self.tau, self.beta = tau, beta
        self.signs = {}  # client -> per key, list of past "did not fall" arrays
        self.w, self.q = {}, {}
        self.passed = []  # share of weights that a mask lets through, per client and round
        self.idle = 0  # weights that no mask lets through

    def mask(self, client, key, u):
        past = self.signs.get(client, {}).get(key, [])
        if not past:
            return np.ones(u.shape)
        s = np.mean(past, axis=0)
        return (np.where(u >= 0, s, 1 - s) > self.tau + 1e-9).astype(float)

    def __call__(self, theta, models):
        u = {c: {k: m[k] - theta[k] for k in theta} for c, m in models.items()}
        m = {c: {k: self.mask(c, k, v) for k, v in u[c].items()} for c in u}
        self.passed += [np.mean(np.concatenate([x.ravel() for x in m[c].values()])) for c in m]
        d = {c: sum(np.sqrt(((m[c][k] * u[c][k]) ** 2).sum()) for k in theta) for c in u}
        for c in u:
            past = self.q.get(c, 0.0)
            self.q[c] = (1 - self.beta) * past + self.beta * d[c] / sum(d.values())
            self.w[c] = self.w.get(c, 1 / len(u)) + self.q[c]
        weights = {c: self.w[c] / sum(self.w[j] for j in u) for c in u}
        new = {}
        for k, old in theta.items():
            share = sum(weights[c] * m[c][k] for c in u)
            moved = sum(weights[c] * m[c][k] * u[c][k] for c in u)
            self.idle += int((share == 0).sum())
            new[k] = old + np.where(share > 0, moved / np.where(share > 0, share, 1), 0)
        for c, moved in u.items():
            for k, v in moved.items():
                self.signs.setdefault(c, {}).setdefault(k, []).append((v >= 0).astype(float))
        return new, weights


def double(entries):
    return {k: v.numpy().astype(np.float64) for k, v in entries.items()}


def replies_of(server, rng, clients, drift):
    """Models that move with a drift of their own and much noise; one weight in ten rests."""
    out = []
    for client in clients:
        shared = {}
        for k, v in server.shared.items():
            step = drift[client] + torch.from_numpy(rng.normal(size=(*v.shape, 1)))[..., 0]
            moves = torch.from_numpy(rng.random((*v.shape, 1)))[..., 0] > 0.1
            shared[k] = v + (0.1 * step * moves).to(v.dtype)
        out.append(Update(client, "train", 1, shared=shared, examples=5))
    return out


@pytest.mark.parametrize(("tau", "beta"), [(0.3, 0.4), (0.5, 1.0), (0.1, 0.2)])
def test_six_rounds_with_three_of_four_clients_follow_the_formulas(tau, beta):
    whole = build("fedheal", tau=tau, beta=beta)
    server = start(whole).server
    rng, heal = np.random.default_rng(0), Heal(tau, beta)
    drift = dict(zip(CLIENTS, (0.5, -0.3, 0.8, 0.0), strict=True))
    for round_ in range(6):
        cohort = [c for i, c in enumerate(CLIENTS) if i != round_ % 4]
        updates = replies_of(server, rng, cohort, drift)
        theta = {k: v for k, v in double(server.shared).items() if k in server.parameters}
        models = {u.client: double({k: u.shared[k] for k in theta}) for u in updates}
        expected, weights = heal(theta, models)
        server.shared = whole.aggregate(server, updates)
        for k, value in expected.items():
            np.testing.assert_allclose(server.shared[k].numpy(), value, rtol=1e-4, atol=1e-5)
        buffer = "block1.1.running_mean"
        mean = sum(weights[u.client] * double(u.shared)[buffer] for u in updates)
        np.testing.assert_allclose(server.shared[buffer].numpy(), mean, rtol=1e-4, atol=1e-5)
    assert min(heal.passed) < 0.95  # masks took something away
    assert heal.idle > 0  # somewhere they took all
    kept = server.state[DistanceWeights().name]
    for c in CLIENTS:
        np.testing.assert_allclose(kept[c].numpy(), [heal.w[c], heal.q[c]], rtol=1e-4)


def test_a_mask_needs_more_than_tau_of_the_earlier_signs():
    u = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, 0.0])
    increases = torch.tensor([3.0, 3.0, 4.0, 7.0, 4.0, 3.0])  # of 10
    expected = [False, True, True, False, True, False]  # 0.3, 0.7, 0.4, 0.3, ties rise: 0.4, 0.3
    assert consistent(u, increases, 10, 0.3).tolist() == expected


@pytest.mark.parametrize("tau", [0.1, 0.2, 0.3, 0.4, 0.5])
@pytest.mark.parametrize("visits", [10, 20, 70, 130])
def test_exactly_tau_is_not_enough_whatever_the_rounding(tau, visits):
    at = torch.tensor([round(tau * visits)], dtype=torch.float32)
    up, down = torch.tensor([1.0]), torch.tensor([-1.0])
    assert not consistent(up, at, visits, tau)
    assert consistent(up, at + 1, visits, tau)
    assert not consistent(down, visits - at, visits, tau)
    assert consistent(down, visits - at - 1, visits, tau)


def test_the_distance_adds_the_norms_of_the_tensors():
    """5 + 13, not the norm of everything."""
    entries = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[5.0, 0.0], [0.0, 12.0]])}
    assert float(distance(entries)) == 18.0


def test_weights_grow_by_a_running_mean_of_the_distances():
    w, q = next_weights(*map(torch.tensor, ([0.5, 0.7], [0.1, 0.2], [3.0, 1.0])), 0.4)
    np.testing.assert_allclose(q, [0.6 * 0.1 + 0.4 * 0.75, 0.6 * 0.2 + 0.4 * 0.25], rtol=1e-6)
    np.testing.assert_allclose(w, [0.5 + 0.36, 0.7 + 0.22], rtol=1e-6)


def test_each_weight_is_averaged_over_those_who_may_move_it():
    updates = [torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5.0, 6.0, 7.0, 8.0])]
    masks = [torch.tensor(m, dtype=torch.bool) for m in ([1, 1, 0, 0], [1, 0, 1, 0])]
    found = masked_step(updates, masks, [0.25, 0.75])
    np.testing.assert_allclose(found, [0.25 + 3.75, 2.0, 7.0, 0.0])


def test_without_masks_and_with_zero_beta_fedheal_is_the_uniform_mean():
    uniform = play(start("fedavg", weights="uniform"))
    heal = play(start(build("fedheal", tau=-1.0, beta=0.0)))
    for key, value in uniform.server.shared.items():
        torch.testing.assert_close(heal.server.shared[key], value, rtol=1e-4, atol=1e-5)


def test_round_1_is_a_mean_weighted_by_distance(replies):
    session = start("fedheal")
    theta = double(session.server.shared)
    play(session, 1)
    rows = replies(session, 1)
    moved = [{k: v - theta[k] for k, v in double(u.shared).items()} for u in rows]
    d = np.array([sum(np.linalg.norm(m[k]) for k in session.server.parameters) for m in moved])
    w = 0.25 + BETA * d / d.sum()
    w /= w.sum()
    assert np.ptp(w) > 1e-3  # away from uniform
    for key, value in session.server.shared.items():  # buffers too
        if value.is_floating_point():
            mean = sum(w_k * double(u.shared)[key] for w_k, u in zip(w, rows, strict=True))
            np.testing.assert_allclose(value.numpy(), mean, rtol=1e-4, atol=1e-5)


def test_counters_take_the_largest_value(replies):
    session = play(start("fedheal"), 1)
    counters = [k for k, v in session.server.shared.items() if not v.is_floating_point()]
    assert counters
    for key in counters:
        assert session.server.shared[key] == max(u.shared[key] for u in replies(session, 1))


def test_what_nobody_may_move_stays(replies):
    """With tau = 1 no sign is consistent enough; everything passes in a first visit."""
    session = play(start(build("fedheal", tau=1.0)), 1)
    first = session.server.shared
    play(session, 1)
    assert all(torch.equal(first[k], session.server.shared[k]) for k in session.server.parameters)
    buffers = first.keys() - session.server.parameters
    assert any(not torch.equal(first[k], session.server.shared[k]) for k in buffers)


def test_history_counts_the_rounds_that_a_client_took_part_in():
    session = play(start("fedheal", clients_per_round=2))
    kept = session.server.state[ConsistentMean().name]
    visits = dict.fromkeys(CLIENTS, 0)
    for round_ in (1, 2, 3):
        for c in session.server.scenario.cohort(0, round_, list(CLIENTS)):
            visits[c] += 1
    assert len(set(visits.values())) > 1
    for c, n in visits.items():
        assert int(kept.get(c, torch.tensor(0))) == n
        for key in session.server.parameters if n else ():
            counts = kept[f"{c}/{key}"]
            assert 0 <= float(counts.min()) <= float(counts.max()) <= n


def test_the_rule_takes_other_weights_and_the_weights_another_rule(replies):
    """Masks with FedAvg's weights; and distances of whole updates under a plain mean."""
    masks = play(start(Method(aggregate=ConsistentMean(ByExamples()))), 1)
    fedavg = play(start("fedavg"), 1)
    for key, value in fedavg.server.shared.items():  # nothing is masked in round 1
        torch.testing.assert_close(masks.server.shared[key], value, rtol=1e-4, atol=1e-5)
    play(masks, 2)
    weights = play(start(Method(aggregate=Mean(DistanceWeights()))), 2)
    heal = play(start(build("fedheal", tau=-1.0)), 2)
    for key, value in heal.server.shared.items():  # a rule that masks nothing
        torch.testing.assert_close(weights.server.shared[key], value, rtol=1e-4, atol=1e-5)


def test_clients_that_do_not_move_leave_the_weights_finite():
    whole = build("fedheal")
    server = start(whole).server
    updates = [Update(c, "train", 1, shared=server.shared, examples=5) for c in CLIENTS]
    found = whole.aggregate.weights(server, updates)
    assert found.tolist() == [0.25] * 4


def test_fedheal_fits_any_local_objective_and_clashes_with_another_aggregator():
    in_process_equals_bytes("fedprox + mixup + fedbn + fedheal")
    with pytest.raises(ClashError, match="both aggregators"):
        build("groupdro + fedheal")


def test_defaults_are_the_authors_and_the_range_is_checked():
    rule = build("fedheal").aggregate
    assert (rule.tau, rule.weights.beta) == (0.3, 0.4)
    assert rule.needs_individual_updates
    with pytest.raises(ConfigError, match=r"consistent-mean.tau is 2.0; it must be from -1.0 to 1"):
        build("fedheal", tau=2.0)
    with pytest.raises(ConfigError, match="distance-weights"):
        build("fedheal", beta=-0.1)
