"""Every registered method, third-party ones included, keeps the contract.

In ``make test`` as few methods as have, between them, every hook that occurs are held to every
clause (``tests/helpers/alike.py``), and the others to ``SHORT``. ``make contract``, which is
part of ``.ci/run``, and ``make test-all`` play the full matrix.
"""

from __future__ import annotations

import pytest
from alike import representatives, with_representatives

from fedshift.testing import (
    CONTRACT,
    in_process_equals_bytes,
    in_process_equals_pool,
)

STACKS = ["moon + scaffold + mixup", "fedbn + fedprox + fedadam", "ditto + groupdro"]
SHORT = (in_process_equals_bytes,)


def cases():
    """(method, clause) of every test; what another one shows is marked."""
    for name, _, stands in with_representatives():
        yield from each(name, CONTRACT if stands else SHORT)
    for name in STACKS:
        yield from each(name, (*SHORT, in_process_equals_pool))


def each(name, needed):
    for clause in CONTRACT:
        marks = () if clause in needed else pytest.mark.exhaustive
        yield pytest.param(name, clause, id=f"{name}-{clause.__name__}", marks=marks)


@pytest.mark.parametrize(("method", "clause"), [*cases()])
def test_contract(method, clause):
    clause(method)


def test_who_stands_for_others_has_every_hook_that_they_have():
    every = {"a": {"x"}, "b": {"y", "z"}, "c": {"x", "y"}, "d": {"z"}}
    assert representatives(every) == {"a", "b"}


def test_who_stands_for_others_has_every_pair_of_hooks_that_they_have():
    every = {"a": {"x", "y"}, "b": {"y", "z"}, "c": {"x", "z"}, "d": {"x"}, "e": {"x", "y", "z"}}
    assert representatives(every, together=2) == {"e"}
    del every["e"]
    assert representatives(every, together=2) == {"a", "b", "c"}
