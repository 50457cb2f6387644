"""Which parts and rules stack, found by building every pair and running the checks before round 1.

A unit is one part, or one rule (weighting, combination and server optimiser of a method). Two units
are put together as ``+`` does it, on the tiny scenario of the contract suite, which allows what
they need; what is refused comes with the message that a user would read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from fedshift.base.errors import FedshiftError
from fedshift.core.channel import Channel
from fedshift.core.config import configure
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.registry import METHODS, join, parts
from fedshift.core.scenario import Scenario
from fedshift.core.state import MemoryStore
from fedshift.data.federation import Federation
from fedshift.engine.build import allowed_data, build_net
from fedshift.engine.federation import federate
from fedshift.engine.preflight import check_needs, check_protection
from fedshift.engine.round import open_server
from fedshift.testing import begin, granting, tiny_scenario

OURS = "fedshift."


@dataclass(frozen=True)
class Unit:
    """A part or a rule that can be added to methods, under the heading of a method that has it."""

    name: str
    group: str
    method: Method  # of this unit alone
    home: str = ""  # a registered method that has it; empty if none has

    @property
    def names(self) -> frozenset[str]:
        """Names by which a message may call it."""
        own = {d.name for d in self.method.declared} if not self.method.parts else set()
        return frozenset({self.name, *own, *(p.name for p in self.method.parts)}) - {"add"}


@dataclass(frozen=True)
class Refusal:
    """Two units that cannot be used together, and why."""

    left: str
    right: str
    reason: str


def units(*, ours: bool = False) -> dict[str, Unit]:
    """Every part and every rule by name; with ``ours`` only those of the project."""
    homes = {name: (entry, entry.build()) for name, entry in METHODS.entries().items()}
    found: dict[str, Unit] = {}
    for name, kind in sorted(parts().items()):
        having = [n for n, (_, m) in homes.items() if any(type(p) is kind for p in m.parts)]
        home = min(having, key=lambda n: (len(homes[n][1].parts), n), default="")
        group = homes[home][0].group if home else _group(kind)
        if not kind.__module__.startswith("fedshift.testing") and (not ours or _is_ours(kind)):
            found[name] = Unit(name, group, Method((kind(),)), home)
    for name, (entry, method) in homes.items():
        rule = method.aggregate.label
        if rule and rule not in found and (not ours or _is_ours(entry.build)):
            found[rule] = Unit(rule, "aggregation", Method((), method.aggregate), name)
    return found


def _is_ours(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(OURS)


def _group(kind: type[Part]) -> str:
    """The heading of a part that no registered method has."""
    adapts = kind.adapt is not Part.adapt
    return "adaptation" if adapts else "compression" if issubclass(kind, Channel) else ""


def why_refused(method: Method) -> str:
    """Why a method is refused before round 1, or an empty string if it can be trained.

    Sites enrol only if a part acts on enrolments; the other checks need no site.
    """
    try:
        if method.overriding("enrol") or method.overriding("admit"):
            begin(method).transport.close()
        else:
            _checked(method)
    except FedshiftError as error:
        return " ".join(str(error).split())
    except Exception as error:
        if all(_is_ours(type(part)) for part in method.parts):
            raise
        return f"it raises {type(error).__name__}: {error}"
    return ""


def _checked(method: Method) -> None:
    """The checks of ``experiment.session.prepare`` that look at the method, in its order."""
    config, whole = configure(method, tiny_scenario(**granting(method)))
    federation = _federation(config.scenario.model_dump_json())
    check_needs(whole, config.scenario, len(federation.sites))
    net = build_net(config, whole, federation)
    resources = allowed_data(federation, config.scenario, "server")
    server = open_server(whole, config.scenario, config.seed, net, resources, MemoryStore())
    server.sites = tuple(federation.sites)
    check_protection(server)
    assert server.uploads is not None  # asks every part's ``check``


@lru_cache(maxsize=16)
def _federation(scenario: str) -> Federation:
    """The sites of a tiny scenario, given as JSON; dealt out once."""
    return federate(Scenario.model_validate_json(scenario), 0)


def refusal(left: Unit, right: Unit) -> Refusal | None:
    """Why two units cannot be used together in either order; None if they stack."""
    reason = _refused(left, right)
    return Refusal(left.name, right.name, reason) if reason and _refused(right, left) else None


def order(left: Unit, right: Unit) -> Refusal | None:
    """Of two units that stack in one order only, the other order and why it is refused."""
    if not {Channel, "build"} & {*_kinds(left), *_kinds(right)}:
        return None  # nothing that depends on the order
    reasons = [_refused(left, right), _refused(right, left)]
    if bool(reasons[0]) == bool(reasons[1]):
        return None
    names = (left.name, right.name) if reasons[0] else (right.name, left.name)
    return Refusal(*names, max(reasons))


def _kinds(unit: Unit) -> Iterator[object]:
    """What about a unit may depend on the order of parts."""
    if unit.method.channels:
        yield Channel
    if unit.method.overriding("build"):
        yield "build"


def _refused(left: Unit, right: Unit) -> str:
    try:
        whole = join(left.method, right.method, right.name)
    except FedshiftError as error:
        return str(error)
    return why_refused(whole)


def alone(known: Iterable[Unit]) -> dict[str, str]:
    """Units that cannot be used by themselves, with the reason: they need another part."""
    found = {unit.name: why_refused(unit.method) for unit in known}
    return {name: reason for name, reason in found.items() if reason}


def pairs(known: Mapping[str, Unit]) -> Iterator[tuple[Unit, Unit]]:
    """All pairs of different units, in the order of their names."""
    return combinations([known[name] for name in sorted(known)], 2)


def refused_with(unit: Unit, known: Mapping[str, Unit]) -> dict[str, str]:
    """Units that cannot be added to a method, in either order, with the reason in general words."""
    own = {p.name for p in unit.method.parts} | {unit.method.aggregate.label}
    found = {}
    for other in known.values():
        if other.name in own:
            continue
        if refused := refusal(unit, other):
            found[other.name] = general(refused.reason, other)
    return found


def general(reason: str, unit: Unit, word: str = "it") -> str:
    """A reason with the unit's names replaced, so that equal ones can be put together."""
    for name in sorted(unit.names, key=len, reverse=True):
        reason = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w`-])", word, reason)
    return reason
