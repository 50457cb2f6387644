"""The parts attacked: what an attacker finds stays below what the accountant says."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.core.message import Broadcast
from fedshift.core.registry import build
from fedshift.privacy import dp, noise
from fedshift.privacy.accountant import epsilon
from fedshift.privacy.audit import audit, lower_bound, server_release, site_release
from fedshift.testing import start, worker

DELTA, NOISE = 1e-5, 3.0
SAID = epsilon(NOISE, 1, delta=DELTA)


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    """A fresh key for every update, the same ones whenever the tests run."""
    count = itertools.count()

    def key(size: int) -> bytes:
        return hashlib.shake_256(b"audit %d" % next(count)).digest(size)

    monkeypatch.setattr(noise.os, "urandom", key)


def released(method: str):
    """The attacked part in a tiny run, at a site or at the server; the head's bias is sent."""
    session = start(method)
    server = session.server
    (part,) = [p for p in build(method).parts if p.gives_privacy]
    key = min(server.parameters, key=lambda k: server.shared[k].numel())
    if isinstance(part, dp.CentralDP):
        server.parameters = frozenset({key})
        server.shared = tree.pick(server.shared, [key])
        return server_release(part, server, sorted(server.roster)[:2])
    here = worker(session)
    first = here._open(Broadcast("dark-0", "train", 1, server.shared), defaultdict(dict))
    return site_release(part, lambda: dataclasses.replace(first, _generators={}), [key])


@pytest.mark.parametrize("part", ["local-dp", "central-dp"])
def test_what_an_attacker_finds_is_below_what_is_accounted_and_not_far(part):
    release = released(f"{part}[noise={NOISE}, randomness=system]")
    found = audit(release, SAID, delta=DELTA, trials=1000, confidence=0.95)
    assert 0.1 * SAID < found.lower < SAID


BROKEN = {
    "no noise": "noise=0, randomness=system",
    "seeded noise": f"noise={NOISE}, randomness=seed",
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("part", ["local-dp", "central-dp"])
def test_noise_that_is_missing_or_seeded_is_found(part, how):
    with pytest.raises(RunError, match="the audit found epsilon of at least"):
        audit(released(f"{part}[{BROKEN[how]}]"), SAID, delta=DELTA, trials=600)


@pytest.mark.parametrize("part", ["local-dp", "central-dp"])
def test_clipping_that_is_switched_off_is_found(part, monkeypatch):
    monkeypatch.setattr(dp, "clipped", lambda step, _clip: step)
    with pytest.raises(RunError, match="noise or clipping is missing"):
        audit(released(f"{part}[noise={NOISE}, randomness=system]"), SAID, delta=DELTA, trials=600)


@pytest.mark.parametrize("part", ["local-dp", "central-dp"])
def test_noise_that_is_too_small_is_found(part, monkeypatch):
    """An eighth of what is accounted."""
    real = dp.discrete_gaussian
    monkeypatch.setattr(dp, "discrete_gaussian", lambda count: real(count) // 8)
    with pytest.raises(RunError, match="the audit found"):
        audit(released(f"{part}[noise={NOISE}, randomness=system]"), SAID, delta=DELTA, trials=1000)


def test_noise_that_is_repeated_is_found(monkeypatch):
    """The same key for every update: the difference of two is exact."""
    fixed = dp.discrete_gaussian(100_000)
    monkeypatch.setattr(dp, "discrete_gaussian", lambda count: fixed[:count])
    with pytest.raises(RunError, match="repeated"):
        audit(
            released(f"local-dp[noise={NOISE}, randomness=system]"), SAID, delta=DELTA, trials=600
        )


def test_the_bound_of_perfect_guesses_is_that_of_clopper_and_pearson():
    zeros, ones = np.zeros(400), np.ones(400)
    found = lower_bound(zeros, ones, delta=0.0, confidence=0.95)
    low, high = beta.ppf(0.025, 200, 1), beta.ppf(0.975, 1, 200)
    assert found == pytest.approx(np.log(low / high))
    assert lower_bound(ones, zeros, delta=0.0, confidence=0.95) == pytest.approx(found)
    assert lower_bound(zeros, zeros, delta=0.0, confidence=0.95) == 0


def test_the_bound_holds_for_gaussians_of_known_epsilon():
    """Scores N(0, 1) and N(1, 1): epsilon at delta from Balle and Wang (2018), Eq. 6."""
    rng = np.random.default_rng(0)
    mu = 1.0
    for eps in (3.0, 4.0):
        delta = norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
        for _ in range(4):
            found = lower_bound(
                rng.normal(0, 1, 2000), rng.normal(mu, 1, 2000), delta=delta, confidence=0.99
            )
            assert found < eps


def test_a_canary_is_clipped_to_one_weight_of_the_clip():
    part = dp.LocalDP(clip=0.3, noise=1e-6, randomness="system")
    step = {"w": torch.tensor([15.0, 0.0]), "b": torch.zeros(3)}
    moved = part.hidden([step], step)
    assert float(moved["w"][0]) == pytest.approx(0.3, rel=1e-4)
