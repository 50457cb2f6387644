"""Rows of FedKA's Table 1 as methods of their own: f-DANN, f-DAN and Voting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core.registry import build
from fedshift.testing import play, start

GRANTS = ("client_val", "domain_ids", "server_unlabelled", "client_target_unlabelled")
ROWS = {
    "f-dann": "fedka - embedding-matching - federated-voting",
    "f-dan": "fedka - global-disentangler - federated-voting",
    "voting": "fedka - global-disentangler - embedding-matching",
}


def shared(method, **changes):
    return play(start(method, allow=GRANTS, **changes)).server.shared


@pytest.mark.parametrize(("row", "subtraction"), ROWS.items())
def test_a_row_is_fedka_without_the_other_two_parts(row, subtraction):
    assert build(row) == build(subtraction)


def test_the_three_rows_together_are_fedka():
    assert build("f-dann + f-dan + voting") == build("fedka")


@pytest.mark.parametrize("row", ROWS)
def test_with_gamma_0_a_row_is_fedavg(same, row):
    found = shared(f"{row}[gamma=0]", rounds=2)
    same(
        {k: v for k, v in found.items() if not k.startswith("extra.")},
        shared("fedavg", rounds=2),
    )


@pytest.mark.parametrize("row", ["f-dann", "f-dan"])
def test_the_target_may_be_at_the_clients(row):
    session = play(start(f"{row}[target_at=client]", allow=GRANTS), 1)
    assert all(m.payload == {} for m in session.transport.seen)


def test_a_target_equal_to_the_source_is_not_matched():
    """f-DAN's discrepancy of two equal sets is zero, so it has no gradient (NumPy: K_SS = K_ST)."""
    part = build("f-dan").parts[0]
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4))).requires_grad_()
    from fedshift.methods.shared.mmd import mk_mmd

    found = mk_mmd(z, z.detach(), kernels=part.kernels, factor=part.factor)
    assert float(found.detach()) == pytest.approx(0.0, abs=1e-15)
    (slope,) = torch.autograd.grad(found, z)
    np.testing.assert_allclose(slope.numpy(), 0.0, atol=1e-15)


def test_voting_sends_nothing_but_the_model():
    session = play(start("voting", allow=GRANTS), 2)
    assert all(m.payload == {} for m in session.transport.seen)
