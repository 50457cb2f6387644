"""Which methods stand for all others in a test of the engine.

The engine does not know methods, only what they override: hooks of parts and channels, the rule,
the weighting, the server's optimiser. So a clause of the contract that is about the engine is
played by as few methods as have, between them, each of these. All methods play every clause with
FEDSHIFT_TEST_ALL=1: ``make contract``.
"""

from __future__ import annotations

import pytest

from fedshift.core.aggregate import Add, Aggregator, Mean
from fedshift.core.channel import Channel
from fedshift.core.part import Part
from fedshift.core.registry import METHODS

# Methods whose server trains long, with settings that shorten it and change nothing that is tested.
SHORTER = {"adcol": "adcol[width=16, server_epochs=1]", "fedtgp": "fedtgp[server_epochs=2]"}


def quick(method):
    """The method as tests of the engine play it."""
    return SHORTER.get(method, method)


def overridden(item, base):
    """Names of what the class of ``item`` defines anew of ``base``."""
    names = [name for name in vars(base) if not name.startswith("__") or name == "__call__"]
    return {name for name in names if getattr(type(item), name) is not getattr(base, name)}


def features(method):
    """What the engine does for a method: the hooks of its parts, its rule and what surrounds it."""
    found = {"nothing"}
    for part in method.parts:
        kind = "channel" if isinstance(part, Channel) else "part"
        found |= {f"{kind}.{name}" for name in overridden(part, Part)}
        if kind == "channel":
            found |= {f"channel.{name}" for name in overridden(part, Channel)}
    rule = method.aggregate
    if type(rule) is not Mean:
        found |= {f"rule.{name}" for name in overridden(rule, Aggregator)}
    found |= {"optimiser"} if type(rule.optimiser) is not Add else set()
    found |= {"weights"} if rule.weights is not None else set()
    return found | ({"pools sites"} if method.pools_sites else set())


def representatives(every):
    """Fewest names (found greedily) that have all features that any of ``every`` has."""
    left = set().union(*every.values())
    chosen = set()
    while left:
        best = max(sorted(every), key=lambda name: len(every[name] & left))
        chosen.add(best)
        left -= every[best]
    return chosen


def with_representatives():
    """Every registered method with its entry, and whether it is one that stands for others."""
    entries = METHODS.entries()
    every = {name: features(entry.build()) for name, entry in entries.items()}
    chosen = representatives(every)
    for name, entry in entries.items():
        yield name, entry, name in chosen


def one_of_each_kind(wanted=lambda method: True):
    """The registered methods as parameters of a test; those for which others stand are further."""
    for name, entry, stands in with_representatives():
        if wanted(entry.build()):
            yield pytest.param(name, id=name, marks=() if stands else pytest.mark.exhaustive)
