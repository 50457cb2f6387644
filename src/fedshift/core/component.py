"""What parts, rules, weightings and server optimisers declare: a name, settings, needs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from fedshift.base.errors import ConfigError
from fedshift.base.settings import convert

T = TypeVar("T")
RESOURCES = {
    "client_val": "a validation split at each client",
    "server_unlabelled": "unlabelled inputs of the target at the server",
    "client_target_unlabelled": "unlabelled inputs of the target at the clients",
    "public_set": "a public data set at the server and the clients",
    "pretrained": "pretrained weights",
    "generator": "a pretrained or random generator",
    "domain_ids": "which domain each client belongs to, known to the server",
    "any_optimiser": "optimisers for which the method's algebra does not hold",
}


def kebab(name: str) -> str:
    """Class name to command-line name.

    Examples:
        >>> kebab("PrivateBatchNorm")
        'private-batch-norm'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def setting(
    default: T,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[T] | None = None,
) -> T:
    """A hyper-parameter with the paper's default, its meaning and its range."""
    limits = {"doc": doc, "low": low, "high": high, "choices": choices}
    value: T = dataclasses.field(default=default, metadata=limits)
    return value


@dataclass(frozen=True)
class Declares:
    """Base of everything a method is composed of: values, equal if class and settings are.

    What depends on a setting is a property of the subclass in place of the class variable.
    """

    alias: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()  # keys of RESOURCES
    needs_individual_updates: ClassVar[bool] = False  # rules out secure aggregation
    needs_full_participation: ClassVar[bool] = False
    min_clients: ClassVar[int] = 1
    scored_at_sites: ClassVar[bool] = (
        False  # private entries stay put even for `global`: a domain's clients score it
    )
    optimisers: ClassVar[frozenset[str] | None] = None  # of sgd, momentum, adam, adamw; None: any
    references: ClassVar[frozenset[str]] = frozenset()  # of received, previous, initial
    gives_privacy: ClassVar[bool] = False  # promises that no more leaves a site than what it covers
    aggregate_only: ClassVar[bool] = (
        False  # and that the method sees a mean in place of single updates
    )
    weights_in_payload: ClassVar[bool] = (
        False  # and that shared entries leave a site in its payload only
    )
    shares: ClassVar[str] = ""  # data-derived payload that leaves a site, in words

    @property
    def name(self) -> str:
        """Name on the command line, in state and in payload: the class's in kebab case."""
        return self.alias or kebab(type(self).__name__)

    def __post_init__(self) -> None:
        for field in settings_of(self):
            check(f"{self.name}.{field.name}", getattr(self, field.name), field.metadata)


def settings_of(owner: object) -> list[dataclasses.Field[Any]]:
    """Hyper-parameters of a part, rule, weighting or optimiser."""
    found = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    return [f for f in found if "doc" in f.metadata]


def check(name: str, value: Any, limits: Any) -> None:
    """Raise if a value is outside the range its setting states."""
    choices, low, high = limits["choices"], limits["low"], limits["high"]
    if choices is not None and value not in choices:
        raise ConfigError(f"{name} is {value!r}; it takes one of {', '.join(map(str, choices))}")
    if value is None:
        return
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        span = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{name} is {value}; it must be {span}")


def with_setting(owner: T, name: str, value: Any) -> T:
    """A copy with one other value; an owner that has no such setting is returned as it is."""
    if not any(f.name == name for f in settings_of(owner)):
        return owner
    new = convert(name, value, getattr(owner, name))
    return replace(owner, **{name: new})  # type: ignore[type-var]


def described(owner: Declares) -> dict[str, Any]:
    """Name and settings as JSON."""
    return {"name": owner.name} | {f.name: getattr(owner, f.name) for f in settings_of(owner)}
