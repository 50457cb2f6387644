"""Wang et al., CVPR 2025, Sec. 4.3: Eqs. 8 and 9."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedshift.core import reply_stack
from fedshift.core.message import Update
from fedshift.core.net import Scope
from fedshift.core.registry import build
from fedshift.methods.fdse import consensus as fdse_consensus
from fedshift.methods.fdse.consensus import LayerConsensus, consensus, gram, moved
from fedshift.methods.fdse.mixing import SimilarityMixing, similarity_weights
from fedshift.methods.shared.simplex import min_norm_weights


def drawn(n, size, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(size=(n, size)) + shift


def directions(v):
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def reference(d):
    """The minimum by a general solver of constrained problems."""
    n = len(d)
    found = minimize(
        lambda u: ((u @ d) ** 2).sum(),
        np.full(n, 1 / n),
        jac=lambda u: 2 * d @ (u @ d),
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda u: u.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    return found.x


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("n", "size", "shift"), [(2, 5, 0), (4, 30, 0), (7, 9, 0.8), (12, 6, 1.5)])
def test_the_weights_minimise_the_norm_over_the_simplex(n, size, shift, seed):
    d = directions(drawn(n, size, seed, shift))
    u = min_norm_weights(d @ d.T)
    assert (u >= 0).all()
    assert u.sum() == pytest.approx(1)
    least = ((reference(d) @ d) ** 2).sum()
    assert ((u @ d) ** 2).sum() == pytest.approx(least, abs=1e-7)


@pytest.mark.parametrize(
    ("n", "size", "shift"),
    [(2, 50, 0), (30, 4, 2), (100, 2000, 0), (300, 40, 0.5), (1000, 60, 0.4)],
)
def test_two_to_a_thousand_clients_are_solved_to_optimality(n, size, shift):
    """<p, d_k> >= |p|^2 for all k: what makes p the nearest point of the hull (Eq. 8's claim)."""
    d = directions(drawn(n, size, n, shift))
    began = time.perf_counter()
    p = min_norm_weights(d @ d.T) @ d
    assert time.perf_counter() - began < 60
    assert (d @ p).min() >= p @ p - 1e-8


def test_two_unit_vectors_meet_in_the_middle():
    d = directions(np.array([[1.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(min_norm_weights(d @ d.T), [0.5, 0.5], atol=1e-9)


def test_a_client_between_two_others_has_no_weight():
    """(1, 0), (0, 1) and (1, 1): the middle one is farther out than the chord of the others."""
    d = directions(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_allclose(min_norm_weights(d @ d.T), [0.5, 0.0, 0.5], atol=1e-9)


def combined(v, degenerate="stay"):
    return consensus(v @ v.T, degenerate) @ v


def test_consensus_is_equation_8():
    v = drawn(5, 40) * np.array([[1.0], [0.2], [3.0], [1.0], [0.7]])
    d = directions(v)
    expected = np.linalg.norm(v, axis=1).mean() * (reference(d) @ d)
    np.testing.assert_allclose(combined(v), expected, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 5, 50])
def test_consensus_of_identical_updates_is_that_update(n):
    v = np.repeat(drawn(1, 9), n, 0)
    np.testing.assert_allclose(combined(v), v[0], atol=1e-9)
    np.testing.assert_allclose(consensus(v @ v.T), np.full(n, 1 / n), atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("n", "size"), [(2, 3), (4, 3), (8, 100), (40, 10)])
def test_consensus_opposes_no_client(n, size, seed):
    v = drawn(n, size, seed, 0.3) * np.random.default_rng(seed).uniform(0.01, 5, (n, 1))
    scale = np.linalg.norm(v, axis=1) * np.linalg.norm(v, axis=1).mean()
    assert ((v @ combined(v)) / scale).min() >= -1e-9


def test_scaling_one_update_changes_the_length_and_not_the_direction():
    v = drawn(4, 20)
    louder = v * np.array([[1.0], [10.0], [1.0], [1.0]])
    a, b = combined(v), combined(louder)
    ratio = np.linalg.norm(louder, axis=1).mean() / np.linalg.norm(v, axis=1).mean()
    np.testing.assert_allclose(b, a * ratio, atol=1e-8)


def test_where_updates_cancel_the_layer_stays_or_takes_the_mean():
    v = np.array([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0]])
    np.testing.assert_allclose(combined(v), 0, atol=1e-8)
    np.testing.assert_allclose(combined(v, "mean"), v.mean(0), atol=1e-12)
    fine = drawn(3, 50)
    np.testing.assert_allclose(combined(fine, "mean"), combined(fine))


def test_a_client_that_did_not_move_has_no_direction_but_a_length():
    v = drawn(3, 10, shift=1.0)
    still = np.vstack([v, np.zeros(10)])
    np.testing.assert_allclose(combined(still), combined(v) * 3 / 4, atol=1e-9)
    assert not combined(np.zeros((3, 10))).any()


@pytest.mark.parametrize("wide", [10**9, 8])
def test_the_gram_matrix_is_the_same_in_blocks(monkeypatch, wide):
    monkeypatch.setattr(fdse_consensus, "BLOCK", 7)
    monkeypatch.setattr(fdse_consensus, "WIDE", wide)
    v, origin = drawn(4, 30).astype(np.float32), drawn(1, 30, 5).astype(np.float32)[0]
    tensors = [torch.from_numpy(row.reshape(5, 6)) for row in v]
    found = gram(tensors, torch.from_numpy(origin.reshape(5, 6)))
    difference = v.astype(np.float64) - origin
    np.testing.assert_allclose(found, difference @ difference.T, rtol=1e-5)


def mixed(p, tau):
    return similarity_weights(p @ p.T, tau) @ p


@pytest.mark.parametrize("tau", [0.1, 0.5, 10.0])
def test_mixing_is_equation_9(tau):
    p = drawn(5, 8, shift=0.5)
    q = directions(p)
    powers = np.exp(q @ q.T / tau)
    np.testing.assert_allclose(mixed(p, tau), powers / powers.sum(1, keepdims=True) @ p)


def test_mixing_goes_from_ones_own_to_the_mean():
    p = drawn(5, 8, shift=0.5)
    np.testing.assert_allclose(mixed(p, 1e-9), p)
    np.testing.assert_allclose(mixed(p, np.inf), np.repeat(p.mean(0)[None], 5, 0))
    np.testing.assert_allclose(mixed(p, 1e9), np.repeat(p.mean(0)[None], 5, 0), rtol=1e-6)


def test_a_tensor_of_zeros_mixes_without_division_by_zero():
    p = np.vstack([np.zeros(3), np.eye(3)])
    np.testing.assert_allclose(mixed(p, 1e-9), p)
    assert np.isfinite(mixed(np.zeros((4, 3)), 0.5)).all()


def server_of(start, scopes):
    return SimpleNamespace(
        shared={k: v for k, v in start.items() if scopes[k] is Scope.SHARED},
        initial=start,
        parameters=frozenset(k for k in start if not k.endswith("running_mean")),
        scenario=SimpleNamespace(weights="examples", max_weight=None),
        keys=lambda scope: {k for k, s in scopes.items() if s is scope},
    )


def federation(n=3, seed=0):
    """A server with one layer and a buffer, and updates of unequal size, as float64 too."""
    rng = np.random.default_rng(seed)
    shapes = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (5,), "n.running_mean": (2,)}
    start = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    sent = [
        {k: v + rng.normal(size=v.shape).astype(np.float32) for k, v in start.items()}
        for _ in range(n)
    ]
    scopes = dict.fromkeys(start, Scope.SHARED)
    server = server_of({k: torch.from_numpy(v) for k, v in start.items()}, scopes)
    updates = [
        Update(f"c{i}", "train", 1, {k: torch.from_numpy(v) for k, v in s.items()}, examples=10**i)
        for i, s in enumerate(sent)
    ]
    return server, updates, start, sent


@pytest.mark.parametrize(
    ("unit", "layers"),
    [
        ("module", [["a.weight", "a.bias"], ["b.weight"]]),
        ("tensor", [["a.weight"], ["a.bias"], ["b.weight"]]),
    ],
)
def test_the_rule_is_equation_8_on_each_layer_and_the_plain_mean_on_buffers(unit, layers):
    server, updates, start, sent = federation()
    found = LayerConsensus(unit=unit)(server, updates)
    for keys in layers:
        v = np.stack([np.concatenate([(s[k] - start[k]).ravel() for k in keys]) for s in sent])
        d = directions(v)
        moved = np.linalg.norm(v, axis=1).mean() * (reference(d) @ d)
        here = np.concatenate([(found[k].numpy() - start[k]).ravel() for k in keys])
        np.testing.assert_allclose(here, moved, atol=1e-5)
    mean = np.mean([s["n.running_mean"] for s in sent], axis=0)  # not by examples
    np.testing.assert_allclose(found["n.running_mean"].numpy(), mean, rtol=1e-5)


def test_the_rule_leaves_a_layer_without_consensus_or_takes_its_mean():
    server, updates, start, sent = federation(n=2)
    against = 2 * server.shared["b.weight"] - updates[0].shared["b.weight"]
    updates[1].shared["b.weight"] = against
    stays, mean = (LayerConsensus(degenerate=d)(server, updates) for d in ("stay", "mean"))
    np.testing.assert_allclose(stays["b.weight"].numpy(), start["b.weight"], atol=1e-6)
    middle = (sent[0]["b.weight"] + against.numpy()) / 2
    np.testing.assert_allclose(mean["b.weight"].numpy(), middle, atol=1e-6)
    assert torch.equal(stays["a.weight"], mean["a.weight"])


def test_a_small_layer_is_moved_in_double_precision():
    """A client that hardly moved has a large c: in float32 the terms would cancel."""
    rng = np.random.default_rng(5)
    start = (100 + rng.normal(size=50)).astype(np.float32)
    sent = (start + 1e-3 * rng.normal(size=(3, 50))).astype(np.float32)
    c = np.array([90.0, 3.0, 0.5])
    found = moved(torch.from_numpy(start), [*torch.from_numpy(sent)], c)
    expected = start.astype(np.float64) + c @ (sent.astype(np.float64) - start)
    np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))


def test_threads_move_no_bit_and_no_entry(monkeypatch):
    server, updates, _, _ = federation(n=reply_stack.MANY)
    threads: set[int] = set()
    consensus_of = fdse_consensus.consensus

    def noted(*args):
        threads.add(threading.get_ident())
        return consensus_of(*args)

    monkeypatch.setattr(fdse_consensus, "consensus", noted)
    spread = LayerConsensus()(server, updates)
    assert threading.get_ident() not in threads
    monkeypatch.setattr(reply_stack, "MANY", len(updates) + 1)
    alone = LayerConsensus()(server, updates)
    assert threading.get_ident() in threads
    assert list(spread) == list(alone) == list(server.shared)
    assert all(torch.equal(spread[k], v) for k, v in alone.items())


def test_a_large_layer_keeps_an_update_that_is_a_ten_thousandth_as_long():
    """Equal directions: the consensus is the mean length along it, also if one hardly moved."""
    rng = np.random.default_rng(6)
    start = rng.normal(size=70_000).astype(np.float32)
    way = rng.normal(size=70_000)
    sent = [(start + step * way).astype(np.float32) for step in (1e-6, 1e-2, 1e-2)]
    c = np.array([1e3, 0.3, 0.2])
    found = moved(torch.from_numpy(start), [torch.from_numpy(s) for s in sent], c)
    wide = np.float64(start)
    expected = sum(w * (s - wide) for w, s in zip(c, sent, strict=True))
    error = np.linalg.norm((found.numpy() - wide) - expected) / np.linalg.norm(expected)
    assert error < 1e-4


@pytest.mark.parametrize("unit", ["submodule", "module", "tensor"])
def test_the_part_mixes_each_layer_of_the_participants(unit):
    rng = np.random.default_rng(3)
    keys = ("e.bn_dse.weight", "e.bn_dse.bias", "e.bias")
    own = {c: {k: rng.normal(size=4).astype(np.float32) for k in keys} for c in "xyz"}
    start = {k: torch.zeros(4) for k in keys}
    server = server_of(start, dict.fromkeys(keys, Scope.PERSONAL))
    updates = [
        Update(c, "train", 1, {}, {k: torch.from_numpy(v) for k, v in t.items()})
        for c, t in own.items()
    ]
    found = SimilarityMixing(tau=0.3, unit=unit).personal(server, updates)
    assert set(found) == set("xyz")
    units = {"submodule": [keys], "module": [keys[:2], keys[2:]], "tensor": [[k] for k in keys]}
    for group in units[unit]:
        p = np.stack([np.concatenate([own[c][k] for k in group]) for c in "xyz"])
        q = directions(p)
        powers = np.exp(q @ q.T / 0.3)
        expected = powers / powers.sum(1, keepdims=True) @ p
        here = [np.concatenate([found[c][k].numpy() for k in group]) for c in "xyz"]
        np.testing.assert_allclose(here, expected, rtol=1e-4, atol=1e-6)


def test_secure_aggregation_is_ruled_out():
    assert any(d.needs_individual_updates for d in build("fdse").declared)
    assert LayerConsensus().needs_individual_updates
    assert SimilarityMixing().needs_individual_updates
