"""Every registered method, third-party ones included, keeps the contract.

Of methods that override the same hooks, the first is held to every clause and the others to
``SHORT``: the engine does the same for all of them. FEDSHIFT_TEST_ALL=1 (``make test-all``) plays
the full matrix.
"""

from __future__ import annotations

import pytest
from alike import first_of_each_kind

from fedshift.testing import (
    CONTRACT,
    finite_and_moving,
    in_process_equals_bytes,
    in_process_equals_pool,
)

STACKS = ["moon + scaffold + mixup", "fedbn + fedprox + fedadam", "ditto + groupdro"]
SHORT = (finite_and_moving, in_process_equals_bytes)


def cases():
    """(method, clause) of every test; what another one shows is marked."""
    for name, _, first in first_of_each_kind():
        yield from each(name, CONTRACT if first else SHORT)
    for name in STACKS:
        yield from each(name, (*SHORT, in_process_equals_pool))


def each(name, needed):
    for clause in CONTRACT:
        marks = () if clause in needed else pytest.mark.exhaustive
        yield pytest.param(name, clause, id=f"{name}-{clause.__name__}", marks=marks)


@pytest.mark.parametrize(("method", "clause"), [*cases()])
def test_contract(method, clause):
    clause(method)
