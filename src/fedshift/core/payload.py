"""What a part sends up, declared: names, shapes, dtypes and ranges of its payload, by task.

Authors return :class:`PayloadSpec` from ``Part.uploads``. ``engine.visit`` checks what is about to
leave a site against it, ``engine.reply_checks`` what arrives at the server, before any part reads
it: both call :meth:`Declared.problem`. A spec describes one tensor and must not depend on a round,
a client or its data, so that both sides know it beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedshift.base import seeds
from fedshift.base.errors import ConfigError
from fedshift.core.net import Net, Scope

if TYPE_CHECKING:
    from fedshift.core.message import Task
    from fedshift.core.part import Part
    from fedshift.core.scenario import Scenario

ANY = "*"  # in place of a key: one or more entries of any name, all of one kind
MOST_OPEN = 100_000  # entries that may be under it
# The L2 norm that weights or payload may have. A model's norm is below 10^6; squares, distances and
# sums of numbers up to this one stay finite in float32 at every site and in every rule.
LARGEST = 1e15


class EntrySpec(NamedTuple):
    """Shape and dtype that an entry must have when it arrives."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, entry: Tensor) -> EntrySpec:
        """Those of a tensor."""
        return cls(tuple(entry.shape), entry.dtype)


class Size(NamedTuple):
    """A dimension that the site chooses, from ``least`` to ``most``.

    It is the same in all entries of the part whose shape has a size of this name: M class means
    (M, D) come with M classes (M,).
    """

    name: str
    most: int
    least: int = 1


@dataclass(frozen=True)
class PayloadSpec:
    """One tensor of a payload. Numbers must be finite in any case; ``low`` and ``high`` count in.

    ``whole`` is for floating-point counts; an ``optional`` entry may be missing.
    """

    shape: tuple[int | Size, ...] = ()
    dtype: torch.dtype = torch.float32
    low: float | None = None
    high: float | None = None
    whole: bool = False
    optional: bool = False

    def wrong_form(self, found: Tensor, sizes: dict[str, int]) -> str:
        """Why a tensor has not this shape and dtype; ``sizes`` collects those that sites choose."""
        fits = len(found.shape) == len(self.shape)
        for n, wanted in zip(found.shape, self.shape, strict=False):
            if isinstance(wanted, Size):
                fits &= wanted.least <= n <= wanted.most and sizes.setdefault(wanted.name, n) == n
            else:
                fits &= n == wanted
        if not fits:
            return f"has shape {tuple(found.shape)}, not {self._words(sizes)}"
        return "" if found.dtype is self.dtype else f"is {found.dtype}, not {self.dtype}"

    def wrong_range(self, found: Tensor) -> str:
        """Why its numbers are not in range."""
        if (self.low is None and self.high is None and not self.whole) or not found.numel():
            return ""
        least, most = found.aminmax()
        if self.low is not None and not bool(least >= self.low):
            return f"has {least.item():g}, and the least is {self.low:g}"
        if self.high is not None and not bool(most <= self.high):
            return f"has {most.item():g}, and the most is {self.high:g}"
        return "has a fraction" if self.whole and bool((found != found.round()).any()) else ""

    def _words(self, sizes: Mapping[str, int]) -> str:
        words = [
            f"{sizes.get(n.name, n.name)} (from {n.least} to {n.most})"
            if isinstance(n, Size)
            else str(n)
            for n in self.shape
        ]
        return f"({', '.join(words)})"


@dataclass(frozen=True)
class ModelSpec:
    """What the server and every site know of the model: what the hook ``uploads`` may look at."""

    net: Net
    scenario: Scenario
    shared: Mapping[str, EntrySpec]  # entries with one value for all clients
    parameters: frozenset[str]  # those of them that are trained
    personal: frozenset[str] = frozenset()  # entries with one value per client, which are uploaded

    @classmethod
    def of(cls, net: Net, scenario: Scenario, scopes: Mapping[str, Scope]) -> ModelSpec:
        """Of a net, before round 1."""
        entries = net.state_dict().items()
        shared = {k: EntrySpec.of(v) for k, v in entries if scopes[k] is Scope.SHARED}
        trained = frozenset(name for name, _ in net.named_parameters()) & shared.keys()
        personal = frozenset(k for k, scope in scopes.items() if scope is Scope.PERSONAL)
        return cls(net, scenario, shared, trained, personal)

    def per_parameter(self) -> dict[str, PayloadSpec]:
        """One entry per shared parameter, in its shape and dtype, under its name."""
        return {k: PayloadSpec(*self.shared[k]) for k in self.shared if k in self.parameters}

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.net.classes

    @cached_property
    def features(self) -> int:
        """Width D of the features; takes a forward pass, which leaves no trace."""
        with seeds.fork("shapes"):
            return int(self.net.shapes()["features"][0])


Uploads = Mapping["Task", Mapping[str, PayloadSpec]]


@dataclass(frozen=True)
class Declared:
    """What all parts of a method declare to send in reply to one task, by ``part/key``."""

    parts: frozenset[str]
    specs: Mapping[str, PayloadSpec]
    required: frozenset[str] = field(init=False)
    ranged: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        due = (k for k, s in self.specs.items() if not s.optional and not k.endswith(f"/{ANY}"))
        limited = (
            k
            for k, s in self.specs.items()
            if s.whole or s.low is not None or s.high is not None or k.endswith(f"/{ANY}")
        )
        object.__setattr__(self, "required", frozenset(due))
        object.__setattr__(self, "ranged", tuple(limited))

    def spec_of(self, key: str) -> PayloadSpec | None:
        """The spec of an entry, by its name or its part's open one."""
        return self.specs.get(key) or self.specs.get(f"{key.partition('/')[0]}/{ANY}")

    def wrong_form(self, payload: Mapping[str, Tensor]) -> str:
        """The first entry that is undeclared, misshapen or missing."""
        if len(payload) > len(self.specs) + MOST_OPEN:
            return f"payload has {len(payload)} entries"
        sizes: dict[str, dict[str, int]] = {}
        for key, value in payload.items():
            owner, _, name = key.partition("/")
            if owner not in self.parts or not name:
                return f"payload {key!r} belongs to no part of the method"
            spec = self.spec_of(key)
            if spec is None:
                return f"payload {key!r} is not declared by {owner} (its hook uploads)"
            if problem := spec.wrong_form(value, sizes.setdefault(owner, {})):
                return f"payload {key} {problem}"
        missing = sorted(self.required - payload.keys())
        return f"payload {missing[0]} is missing" if missing else ""

    def wrong_range(self, payload: Mapping[str, Tensor]) -> str:
        """The first entry with a number that is not finite or out of its range; after the form."""
        if problem := not_finite(payload):
            return f"payload {problem}"
        for key in payload if self.ranged else ():
            spec = self.spec_of(key)
            if spec is not None and (problem := spec.wrong_range(payload[key])):
                return f"payload {key} {problem}"
        return ""

    def problem(self, payload: Mapping[str, Tensor]) -> str:
        """The first thing that is wrong with a payload; empty if it is as declared."""
        return self.wrong_form(payload) or self.wrong_range(payload)


def declared(parts: Iterable[Part], model: ModelSpec) -> dict[Task, Declared]:
    """What the parts of a method declare to send, by task."""
    parts = list(parts)
    specs: dict[Task, dict[str, PayloadSpec]] = {"enrol": {}, "train": {}, "talk": {}}
    for part in parts:
        for task, own in part.uploads(model).items():
            if task not in specs or not all(isinstance(s, PayloadSpec) for s in own.values()):
                raise ConfigError(
                    f"{part.name}.uploads returns {task!r}: {own!r}; it maps enrol, train or talk "
                    "to a PayloadSpec per key"
                )
            specs[task] |= {f"{part.name}/{key}": spec for key, spec in own.items()}
    names = frozenset(part.name for part in parts)
    return {task: Declared(names, found) for task, found in specs.items()}


def not_finite(entries: Mapping[str, Tensor]) -> str:
    """Which entry has a number that is not finite, or makes the norm larger than ``LARGEST``."""
    floats = {key: value for key, value in entries.items() if value.is_floating_point()}
    if not floats:
        return ""
    # One fused pass over all tensors, of whatever float types; no bound is below NaN or infinity.
    norms = torch._foreach_norm([*floats.values()])  # noqa: SLF001  has no public name
    if math.hypot(*map(float, norms)) <= LARGEST:
        return ""
    bad = next((k for k, v in floats.items() if not bool(v.isfinite().all())), "")
    if bad:
        return f"{bad} has a value that is not finite"
    sizes = {k: float(v.double().norm()) for k, v in floats.items()}
    if sum(size**2 for size in sizes.values()) <= LARGEST**2:  # it overflowed in half precision
        return ""
    worst = max(sizes, key=lambda k: sizes[k])
    return f"{worst} has a norm of {sizes[worst]:.3g}, and all together may have {LARGEST:g}"
