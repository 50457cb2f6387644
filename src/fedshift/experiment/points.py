"""The points of a sweep: axes from text, every combination or random ones, and what each changes.

``experiment.sweep`` and ``experiment.tuning`` use it. A point becomes a method's expression and a
scenario, so that its runs have the names that ``compare`` would give them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedshift.base import seeds
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.core.method import Method
from fedshift.core.registry import build
from fedshift.core.scenario import Scenario
from fedshift.experiment.scenario import require_clear, scenario_from, split_settings

MOST = 10_000  # points of a grid, above which somebody has mistyped something


@dataclass(frozen=True)
class Axis:
    """What one parameter may be: some ``values``, or a number between ``low`` and ``high``."""

    key: str
    values: tuple[str, ...] = ()
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    whole: bool = False  # integers only

    @property
    def is_range(self) -> bool:
        """Whether it is a range and not a list."""
        return not self.values

    def at(self, share: float) -> str:
        """The value at a share of the way, from 0 up to and without 1.

        >>> Axis("mu", low=0.01, high=1.0, log=True).at(0.5), Axis("k", ("a", "b")).at(0.7)
        ('0.1', 'b')
        """
        if self.values:
            return self.values[int(share * len(self.values))]
        if self.whole:
            return str(min(int(self.high), int(self.low) + int(share * (self.high - self.low + 1))))
        if self.log:
            return short(self.low * (self.high / self.low) ** share)
        return short(self.low + share * (self.high - self.low))


def short(value: float) -> str:
    """A number of three digits, as people write it: a setting needs no more.

    >>> short(0.0123456), short(1200.0)
    ('0.0123', '1200')
    """
    return f"{float(f'{value:.3g}'):g}"


def read_axis(text: str) -> Axis:
    """An axis from text: ``mu=0.01,0.1``, ``mu=0.001:1:log`` or ``tau=0:1``."""
    key, equals, given = text.partition("=")
    key = key.strip()
    if not key or not equals or not given.strip():
        raise ConfigError(f"cannot read the axis {text!r}; write KEY=VALUE,VALUE or KEY=LOW:HIGH")
    return axis_of(key, given)


def axis_of(key: str, given: Any) -> Axis:
    """An axis from a list of values, from one value, or from text."""
    if not isinstance(given, str):
        listed = list(given) if isinstance(given, Sequence | np.ndarray) else [given]
        return Axis(key, tuple(dict.fromkeys(map(plain, listed))))
    if match := re.fullmatch(r"\s*([^:,]+):([^:,]+?)(:log)?\s*", given):
        return _range(key, *match.groups())
    values = tuple(dict.fromkeys(v.strip() for v in given.split(",") if v.strip()))
    if not values:
        raise ConfigError(f"the axis {key!r} has no value; write {key}=VALUE,VALUE")
    return Axis(key, values)


def _range(key: str, low: str, high: str, log: str | None) -> Axis:
    try:
        ends = float(low), float(high)
    except ValueError:
        raise ConfigError(f"the ends of {key}={low}:{high} are no numbers") from None
    if not (math.isfinite(ends[0]) and ends[0] < ends[1] < math.inf) or (log and ends[0] <= 0):
        raise ConfigError(
            f"the range {key}={low}:{high} is none: its ends rise, and are above 0 with :log"
        )
    whole = not log and low.strip().lstrip("-").isdigit() and high.strip().lstrip("-").isdigit()
    return Axis(key, (), *ends, bool(log), whole)


def plain(value: Any) -> str:
    """A value as an expression has it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Point:
    """One setting of all axes: what it changes, and the method and scenario that follow."""

    values: tuple[tuple[str, str], ...]  # key and value of each axis, in order
    method: str | Method
    scenario: Scenario

    @property
    def label(self) -> str:
        """The values on one line."""
        return ", ".join(f"{key}={value}" for key, value in self.values) or "defaults"

    @property
    def content(self) -> str:
        """What a run of it computes, apart from the seed."""
        whole = self.method if isinstance(self.method, Method) else build(self.method)
        return json.dumps([whole.describe(), self.scenario.model_dump(mode="json")], sort_keys=True)


def point(method: str | Method, scenario: Scenario, values: Mapping[str, str]) -> Point:
    """A method and a scenario with some values changed; raises if they do not fit."""
    own, changes = split_settings([f"{key}={value}" for key, value in values.items()])
    changed = scenario_from(scenario, None, None, changes) if changes else scenario
    if isinstance(method, str):
        require_clear(method, own)
        typed = with_settings(method, own)
        build(typed)
        return Point(tuple(values.items()), typed, changed)
    for key, value in own.items():
        method = method.set(key, value)
    return Point(tuple(values.items()), method, changed)


def with_settings(expression: str, values: Mapping[str, str]) -> str:
    """The expression with settings written into its brackets, at the first term that has them.

    >>> with_settings("fedprox[lr=1] + mixup", {"mu": "0.1", "alpha": "0.4"})
    'fedprox[lr=1, mu=0.1] + mixup[alpha=0.4]'
    """
    words = re.split(r"(\s+[+-]\s+)", expression.strip())
    terms = [i for i in range(0, len(words), 2) if i == 0 or words[i - 1].strip() == "+"]
    for key, value in values.items():
        if re.search(r"[\[\],=]", value):
            raise ConfigError(f"{key}={value} cannot stand in an expression; choose another value")
        at = _owner(words, terms, key, value)
        words[at] = _inserted(words[at], key, value)
    return "".join(words)


def _owner(words: Sequence[str], terms: Sequence[int], key: str, value: str) -> int:
    """Which term takes a setting; the error of the first one if none does."""
    first: UnknownNameError | None = None
    for at in terms:
        head = "fedavg + " if at else ""  # a part stands in an expression after a method only
        try:
            build(head + _inserted(words[at], key, value))
        except UnknownNameError as error:
            first = first or error
        else:
            return at
    assert first is not None
    raise first


def _inserted(word: str, key: str, value: str) -> str:
    name, _, inside = word.strip().partition("[")
    given = [item.strip() for item in inside.removesuffix("]").split(",") if item.strip()]
    if key in (item.partition("=")[0].strip() for item in given):
        raise ConfigError(
            f"{key} is an axis and stands in {word.strip()!r} too; leave it out there"
        )
    return f"{name}[{', '.join([*given, f'{key}={value}'])}]"


def grid(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Every combination of the axes' values; a range has no values to combine."""
    for axis in axes:
        if axis.is_range:
            raise ConfigError(
                f"{axis.key} is a range, and a grid needs values; list them, or draw points at "
                "random",
                "random=N",
            )
    size = math.prod(len(axis.values) for axis in axes)
    if size > MOST:
        raise ConfigError(f"the grid has {size} points, more than {MOST}; draw some", "random=N")
    for values in product(*(axis.values for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


def drawn(axes: Sequence[Axis], count: int, seed: int) -> Iterator[dict[str, str]]:
    """Points drawn at random, no two alike; fewer than ``count`` if there are no more.

    The first ones are the same whatever ``count`` is, so that a longer search continues a shorter
    one.
    """
    rng = seeds.numpy(seed, "sweep")
    seen: set[tuple[str, ...]] = set()
    for _ in range(100 * count):
        values = tuple(axis.at(float(rng.random())) for axis in axes)
        if values not in seen:
            seen.add(values)
            yield dict(zip((axis.key for axis in axes), values, strict=True))
        if len(seen) == count:
            return
