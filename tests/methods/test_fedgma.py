"""Tenison et al., TMLR 2023."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.methods.fedgma import agreement_mask
from fedshift.testing import play, start


def test_the_mask_is_one_from_tau_on_and_the_agreement_below():
    """Four clients: all agree, three do, two do; and one that does not move has half a say."""
    signs = torch.tensor(
        [[1, -1, 1, 0], [1, -1, 1, 1], [1, -1, -1, 1], [1, 1, -1, -1]], dtype=torch.float32
    )
    assert agreement_mask(signs, 0.4).tolist() == [1, 1, 0, 0.25]
    assert agreement_mask(signs, 0.5).tolist() == [1, 1, 0, 0.25]
    assert agreement_mask(signs, 0.6).tolist() == [1, 0.5, 0, 0.25]


def test_with_zero_tau_it_is_fedavg(same):
    same(
        play(start("fedavg"), 2).server.shared,
        play(start(build("fedgma", tau=0.0)), 2).server.shared,
    )


def test_a_round_is_the_masked_mean_of_the_updates(replies):
    session = start(build("fedgma", tau=0.9))
    old = session.server.shared
    play(session, 1)
    rows = replies(session, 1)
    p = np.array([u.examples for u in rows]) / sum(u.examples for u in rows)
    seen = set()
    for key in session.server.parameters:
        moved = np.stack([(u.shared[key] - old[key]).double().numpy() for u in rows])
        agreed = np.abs(np.sign(moved).mean(0))
        seen |= set(agreed.flatten().tolist())
        mask = np.where(agreed >= 0.9, 1.0, agreed)
        expected = old[key].numpy() + mask * np.tensordot(p, moved, axes=1)
        np.testing.assert_allclose(
            session.server.shared[key].numpy(), expected, rtol=1e-5, atol=1e-6
        )
    assert {0.0, 0.5, 1.0} <= seen  # every kind of coordinate occurred


def test_votes_count_the_same_and_the_mean_is_weighted():
    """Clients of 1 and 3 examples move by +4 and -4: the mean is -2, the vote is a tie."""
    whole = build("fedgma", tau=0.5)
    server = start(whole).server
    key = "head.bias"
    old = server.shared[key]
    updates = [
        Update("a", "train", 1, shared=server.shared | {key: old + 4}, examples=1),
        Update("b", "train", 1, shared=server.shared | {key: old - 4}, examples=3),
    ]
    torch.testing.assert_close(whole.aggregate(server, updates)[key], old)
    third = Update("c", "train", 1, shared=server.shared | {key: old - 4}, examples=4)
    found = whole.aggregate(server, [*updates, third])[key]  # |1 - 2| / 3 of a mean of -3
    assert float((found - old).mean()) == pytest.approx(-1.0, rel=1e-5)


def test_buffers_are_averaged_whatever_the_votes(replies):
    session = play(start(build("fedgma", tau=1.0)), 1)
    rows = replies(session, 1)
    p = np.array([u.examples for u in rows]) / sum(u.examples for u in rows)
    for key in session.server.statistics:
        if session.server.shared[key].is_floating_point():
            mean = np.tensordot(p, np.stack([u.shared[key].numpy() for u in rows]), axes=1)
            np.testing.assert_allclose(session.server.shared[key].numpy(), mean, rtol=1e-5)
