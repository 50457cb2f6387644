"""Which methods the engine plays alike, so that one of them can stand for all in a test of it."""

from __future__ import annotations

import pytest

from fedshift.core.aggregate import Add, Aggregator, Mean
from fedshift.core.channel import Channel
from fedshift.core.part import Part
from fedshift.core.registry import METHODS


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
    plain = type(rule.optimiser) is Add, rule.weights is None
    return frozenset(hooks), tuple(channels), own, plain, method.pools_sites


def first_of_each_kind():
    """Every registered method with its entry, and whether it is the first of its kind."""
    seen = set()
    for name, entry in METHODS.entries().items():
        found = kind(entry.build())
        yield name, entry, found not in seen
        seen.add(found)


def one_of_each_kind(wanted=lambda method: True):
    """The registered methods as parameters of a test; further ones of a kind are exhaustive."""
    for name, entry, first in first_of_each_kind():
        if wanted(entry.build()):
            yield pytest.param(name, id=name, marks=() if first else pytest.mark.exhaustive)
