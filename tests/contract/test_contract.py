"""Every registered method, third-party ones included, keeps the contract.

Of methods that override the same hooks, the first is held to every clause and the others to
``SHORT``: the engine does the same for all of them. FEDSHIFT_TEST_ALL=1 (``make test-all``) plays
the full matrix.
"""

from __future__ import annotations

import pytest

from fedshift.core.aggregate import Add, Aggregator, Mean
from fedshift.core.channel import Channel
from fedshift.core.part import Part
from fedshift.core.registry import METHODS
from fedshift.testing import (
    CONTRACT,
    finite_and_moving,
    in_process_equals_bytes,
    in_process_equals_pool,
    resumes_exactly,
)

STACKS = ["moon + scaffold + mixup", "fedbn + fedprox + fedadam", "ditto + groupdro"]
SHORT = (finite_and_moving, in_process_equals_bytes, resumes_exactly)


def overridden(item, base):
    """Names of what the class of ``item`` defines anew of ``base``."""
    names = [name for name in vars(base) if not name.startswith("__") or name == "__call__"]
    return {name for name in names if getattr(type(item), name) is not getattr(base, name)}


def kind(method):
    """What the engine does for a method: the hooks of its parts, its rule and what surrounds it."""
    hooks = set().union(*(overridden(p, Part) for p in method.parts if not isinstance(p, Channel)))
    channels = [frozenset(overridden(c, Channel) | overridden(c, Part)) for c in method.channels]
    rule = method.aggregate
    own = frozenset() if type(rule) is Mean else frozenset(overridden(rule, Aggregator))
    return frozenset(hooks), tuple(channels), own, type(rule.optimiser) is Add, rule.weights is None


def cases():
    """(method, clause) of every test; what another one shows is marked."""
    seen = set()
    for name, entry in METHODS.entries().items():
        found = kind(entry.build())
        yield from each(name, CONTRACT if found not in seen else SHORT)
        seen.add(found)
    for name in STACKS:
        yield from each(name, (*SHORT, in_process_equals_pool))


def each(name, needed):
    for clause in CONTRACT:
        marks = () if clause in needed else pytest.mark.exhaustive
        yield pytest.param(name, clause, id=f"{name}-{clause.__name__}", marks=marks)


@pytest.mark.parametrize(("method", "clause"), [*cases()])
def test_contract(method, clause):
    clause(method)
