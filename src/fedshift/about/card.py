"""The card of a method: paper, idea, parts, equations, settings, needs and traffic, as JSON.

``fedshift show METHOD`` prints it and ``scripts/method_pages.py`` makes the heads of pages of it.
All of it is declared or measured on a net that is built and not trained.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedshift.base.errors import FedshiftError, UnknownNameError
from fedshift.base.registry import Entry
from fedshift.core.aggregate import Add, Aggregator, Mean, ServerOptimiser, Weighting
from fedshift.core.channel import Channel
from fedshift.core.component import Declares, settings_of
from fedshift.core.config import configure
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.payload import ANY, PayloadSpec, Size
from fedshift.core.registry import METHODS, build, parts
from fedshift.core.resource import resource
from fedshift.core.scenario import Scenario
from fedshift.engine.reply_checks import expected
from fedshift.engine.round import negotiate
from fedshift.experiment.session import Session, prepare
from fedshift.testing import granting

Row = dict[str, Any]
PACKAGE = "fedshift.methods"
SHARED = (f"{PACKAGE}.shared", "fedshift.core")  # where equations may point besides their method
KINDS: tuple[tuple[type[Declares], str], ...] = (
    (Channel, "channel"),
    (Part, "part"),
    (Aggregator, "rule"),
    (Weighting, "weighting"),
    (ServerOptimiser, "server optimiser"),
)


def entry_of(name: str) -> Entry[Method]:
    """The registered method of that name, or a part as FedAvg with it."""
    known = METHODS.entries()
    if name in known:
        return known[name]
    kinds = parts()
    if name not in kinds:
        raise UnknownNameError.of("method or part", name, [*known, *kinds])
    made = partial(build, f"fedavg + {name}")
    made.__doc__ = inspect.getdoc(kinds[name])
    made.__module__ = kinds[name].__module__
    return Entry(name, made, "", "part")


def located(entry: Entry[Method], name: str) -> str:
    """Where a function under ``equations`` is, as ``module:line``; empty if it does not exist."""
    package = entry.build.__module__.rpartition(".")[0]
    own = () if package == PACKAGE else (package,)
    found = entry.find(name, *own, *SHARED)
    if found is None:
        return ""
    line = inspect.getsourcelines(found)[1]
    return f"{inspect.getmodule(found).__name__}:{line}"  # type: ignore[union-attr]


def summary_of(thing: object) -> str:
    """First sentence of a docstring, on one line."""
    lines = (inspect.getdoc(thing) or "").split("\n\n")[0].split("\n")
    return " ".join(" ".join(lines).split())


def components(method: Method) -> list[Row]:
    """Parts, rule, weighting and server optimiser, as far as they are not FedAvg's."""
    shown = [d for d in method.declared if d not in (Mean(), Add()) and type(d) is not Mean]
    return [
        {
            "name": d.name,
            "kind": next(word for kind, word in KINDS if isinstance(d, kind)),
            "what": summary_of(type(d)),
        }
        for d in shown
    ]


def limits(value: Any, metadata: Mapping[str, Any]) -> str:
    """The range of a setting in words.

    Examples:
        >>> limits(0.1, {"low": 0.0, "high": None, "choices": None})
        'at least 0'
    """
    if metadata["choices"] is not None:
        return ", ".join(map(str, metadata["choices"]))
    if isinstance(value, bool):
        return "true, false"
    low, high = metadata["low"], metadata["high"]
    if low is None and high is None:
        return "text" if isinstance(value, str) else "any number"
    if high is None:
        return f"at least {low:g}"
    return f"at most {high:g}" if low is None else f"{low:g} to {high:g}"


def settings(entry: Entry[Method], method: Method) -> list[Row]:
    """Every setting as it is typed, with default, range and meaning; options of the builder first.

    The server's rate of FedAvg is left out, since every method has it.
    """
    fields = [(d, f) for d in method.declared if d != Add() for f in settings_of(d)]
    options = dict(entry.options) if entry.group != "part" else {}
    rows = []
    for key, option in options.items():
        same = [f.metadata for _, f in fields if f.name == key]
        told = entry.option_doc(key) or (same[0]["doc"] if same else "an option of the method")
        plain: Row = {"low": None, "high": None, "choices": None}
        span = limits(option.default, same[0] if same else plain)
        rows.append({"key": key, "default": option.default, "range": span, "meaning": told})
    counts = [f.name for _, f in fields]
    for owner, field in fields:
        if field.name in options:
            continue
        value = getattr(owner, field.name)
        key = field.name if counts.count(field.name) == 1 else f"{owner.name}.{field.name}"
        span = limits(value, field.metadata)
        rows.append({"key": key, "default": value, "range": span, "meaning": field.metadata["doc"]})
    return rows


def needs(method: Method) -> list[str]:
    """What the scenario must have or allow, and what the server must see, in words."""
    told: dict[str, None] = {}
    for d in method.declared:
        told |= dict.fromkeys(f"{resource(need).doc} (allow {need})" for need in sorted(d.needs))
        if d.min_clients > 1:
            told[f"at least {d.min_clients} clients"] = None
        if d.needs_full_participation:
            told["every client in every round"] = None
        if d.needs_individual_updates:
            told["single updates at the server, so no secure aggregation"] = None
        if d.optimisers is not None:
            told[f"local optimiser: {' or '.join(sorted(d.optimisers))}"] = None
        if d.objectives is not None:
            told[f"targets: {' or '.join(sorted(d.objectives))}"] = None
        told |= dict.fromkeys(
            f"the {name} model at the client, frozen: one more forward pass per batch"
            for name in sorted(d.references)
        )
    return list(told)


@dataclass(frozen=True)
class RoundTraffic:
    """Bytes of one round and one client, by kind; payload at most, where a site chooses its size.

    ``later`` are parts that send something down, but nothing yet in round 1. ``talk`` are bytes of
    exchanges beside training, up and down.
    """

    up: Mapping[str, int]
    down: Mapping[str, int]
    later: tuple[str, ...] = ()
    talk: tuple[int, int] = (0, 0)

    @property
    def totals(self) -> tuple[int, int]:
        """Bytes up and down."""
        return sum(self.up.values()) + self.talk[0], sum(self.down.values()) + self.talk[1]


def opened(method: Method, scenario: Scenario) -> Session:
    """A run of the method before round 1, with all extra data that it needs; nothing is written."""
    eased = scenario.change(private_at_new_site="refuse")
    config, whole = configure(method, eased.change(**granting(method, eased)))
    return prepare(config, whole)


def traffic(method: Method, scenario: Scenario) -> RoundTraffic:
    """What one client receives and sends in round 1, from declarations: nothing is trained."""
    session = opened(method, scenario)
    try:
        server = session.server
        server.round += 1
        negotiate(server, session.transport, server.sites, session.record)
        client = server.sites[0]
        down = _kinds(server.broadcast("train", client).bytes_by_kind())
        up = {
            section: sum(
                math.prod(spec.shape) * spec.dtype.itemsize
                for spec in expected(server, section, "train").values()
            )
            for section in ("shared", "personal")
        }
        for key, spec in server.uploads["train"].specs.items():
            part = key.partition("/")[0]
            up[part] = up.get(part, 0) + most_bytes(key, spec)
        sent = session.record.traffic("talk")
        talk = tuple(sent.get(way, 0) // len(server.sites) for way in ("up", "down"))
    finally:
        session.transport.close()
    silent = tuple(p.name for p in method.overriding("send") if p.name not in down)
    return RoundTraffic({k: v for k, v in up.items() if v}, down, silent, talk)  # type: ignore[arg-type]


def _kinds(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of tensors by section or part."""
    return {k.removeprefix("payload/"): v for k, v in sizes.items() if k != "scalars"}


def most_bytes(key: str, spec: PayloadSpec) -> int:
    """The largest size that an entry of payload may have; 0 where it is open."""
    if key.endswith(f"/{ANY}"):
        return 0
    sizes = (n.most if isinstance(n, Size) else n for n in spec.shape)
    return math.prod(sizes) * spec.dtype.itemsize


def leaves(method: Method) -> list[str]:
    """What derived from data leaves a site beside the weights, in words."""
    return [f"{d.name}: {d.shares}" for d in method.declared if d.shares]


def card(entry: Entry[Method]) -> Row:
    """Everything that is declared about a method, as JSON."""
    method = entry.build()
    return {
        "name": entry.name,
        "group": entry.group,
        "paper": entry.paper,
        "summary": entry.summary,
        "idea": entry.idea,
        "use": entry.use,
        "not_for": entry.not_for,
        "parts": components(method),
        "equations": [
            {"where": e.where, "functions": {f: located(entry, f) for f in e.functions}}
            for e in entry.equations
        ],
        "settings": settings(entry, method),
        "needs": needs(method),
        "leaves": leaves(method),
    }


def measured(entry: Entry[Method], scenario: Scenario) -> Row:
    """Bytes of a round on a scenario's backbone, beside FedAvg's; or why it cannot run there."""
    try:
        own, plain = (traffic(m, scenario) for m in (entry.build(), Method()))
    except FedshiftError as error:
        return {"scenario": scenario.name, "backbone": scenario.backbone, "problem": str(error)}
    return {
        "scenario": scenario.name,
        "backbone": scenario.backbone,
        "up": dict(own.up),
        "down": dict(own.down),
        "later": list(own.later),
        "talk": list(own.talk),
        "totals": list(own.totals),
        "fedavg": list(plain.totals),
    }


def human(size: float) -> str:
    """Bytes as people read them.

    Examples:
        >>> human(512), human(136704), human(2.5e9)
        ('512 B', '136.7 kB', '2.5 GB')
    """
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size:.0f} B"


def times(size: float, plain: float) -> str:
    """A size as a multiple of FedAvg's, in three digits.

    Examples:
        >>> times(200, 100), times(0, 100), times(101, 100)
        ('2 times', 'none', '1.01 times')
    """
    return f"{size / plain:.3g} times" if size else "none"


def module_path(where: str) -> Path:
    """The file of a ``module:line`` in the repository."""
    return Path("src", *where.partition(":")[0].split(".")).with_suffix(".py")


def grouped(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Names by reason, in the order in which the reasons come."""
    found: dict[str, list[str]] = {}
    for name, reason in pairs:
        found.setdefault(reason, []).append(name)
    return iter(found.items())
