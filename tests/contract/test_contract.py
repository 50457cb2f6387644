"""Every registered method, third-party ones included, keeps the contract.

In ``make test`` as few methods as have, between them, every hook that occurs
(``tests/helpers/alike.py``) are held to the clauses that are played in one process, and some stacks
to ``SHORT``. ``make transports``, which is part of ``.ci/run``, plays the clauses about transports,
private entries and resuming for every method, and ``make contract`` the full matrix.
"""

from __future__ import annotations

import pytest
from alike import quick, representatives, with_representatives

from fedshift.testing import (
    CONTRACT,
    in_process_equals_bytes,
    in_process_equals_flower,
    in_process_equals_pool,
    resumes_exactly,
)

STACKS = ["moon + scaffold + mixup", "fedbn + fedprox + fedadam", "ditto + groupdro"]
SHORT = (in_process_equals_bytes, in_process_equals_pool)
LONG = {in_process_equals_flower, in_process_equals_pool, resumes_exactly}


def cases():
    """(method, clause) of every test; what another one shows is marked."""
    for name, _, stands in with_representatives():
        yield from each(name, {*CONTRACT} - LONG if stands else ())
    for name in STACKS:
        yield from each(name, SHORT)


def each(name, needed):
    for clause in CONTRACT:
        marks = () if clause in needed else pytest.mark.exhaustive
        yield pytest.param(quick(name), clause, id=f"{name}-{clause.__name__}", marks=marks)


@pytest.mark.parametrize(("method", "clause"), [*cases()])
def test_contract(method, clause):
    clause(method)


def test_who_stands_for_others_has_every_hook_that_they_have():
    every = {"a": {"x"}, "b": {"y", "z"}, "c": {"x", "y"}, "d": {"z"}}
    assert representatives(every) == {"a", "b"}
