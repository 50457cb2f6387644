"""What every component of a method declares: its name, its settings, its needs.

Components are parts, combining rules, weightings and server optimisers. Their authors set these
declarations, ``engine.preflight`` checks them before round 0, and the registry, the command line
and the run's record read them. A component holds hyper-parameters only, never tensors or state.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from fedshift.base.errors import ConfigError
from fedshift.base.settings import convert

T = TypeVar("T")


def kebab(name: str) -> str:
    """The command-line spelling of a class name.

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
    """A dataclass field that is a hyper-parameter: the paper's default, its meaning, its range.

    ``doc`` is shown by the command line; a value outside ``low``, ``high`` or ``choices`` is an
    error when the component is constructed.
    """
    limits = {"doc": doc, "low": low, "high": high, "choices": choices}
    value: T = dataclasses.field(default=default, metadata=limits)
    return value


@dataclass(frozen=True)
class Declares:
    """Base of every component of a method; two are equal if class and settings are.

    A subclass overrides the class variables below. One that depends on a setting becomes a property
    of the subclass, as ``needs`` does in FedKA. ``engine.preflight`` compares them with the
    scenario and stops the run before round 0, with the component's name, if they do not fit.

    The three privacy flags belong together. ``gives_privacy`` marks a privacy part: whatever leaves
    a site must pass through it, so any other component that sends something derived from data
    stops the run. ``aggregate_only`` adds that the server side of the method sees only the
    aggregate, never one client's update; it rules out ``merge``, ``personal``, rules other than the
    plain mean, and ``needs_individual_updates``. ``weights_in_payload`` adds that weights travel
    only inside this part's payload, so ``update.shared`` arrives empty; such a part has to be the
    last privacy part of the method. Central differential privacy sets the first two, secure
    aggregation all three.

    Attributes:
        alias: Name to use instead of the class's own in kebab case.
        needs: Extra data or knowledge without which it cannot work, as names of resources
            (``core.resource``); the scenario has to allow them.
        needs_individual_updates: It reads single clients' updates, which rules out secure
            aggregation.
        needs_full_participation: Every client has to take part in every round.
        min_clients: Fewest clients that it can work with, such as 2 if it compares them.
        scored_at_sites: Under the protocol ``global``, each domain is scored by its own sites, with
            their private entries. Otherwise the server scores one model on every domain, which a
            method with private entries may not have.
        pools_sites: It trains on the data of all sites in one place, so it is for simulations: its
            federation has one site, and every protocol scores the one model.
        optimisers: Client optimisers for which its algebra holds, of sgd, momentum, adam and adamw;
            None means any. SCAFFOLD's control variates assume plain SGD.
        objectives: Kinds of target for which it is defined, of classification, multi-label and
            regression; None means any.
        replaces_gradients: Its ``edit_gradients`` takes the gradient anew, at other weights. It is
            therefore called before those of other parts, which add to the gradient and whose
            additions would be lost; a method has at most one such part.
        references: Frozen models that it asks :meth:`Client.reference` for, of received, previous
            and initial.
        gives_privacy: It is a privacy part.
        aggregate_only: The server side of the method sees only the aggregate.
        weights_in_payload: Weights travel only inside this part's payload.
        shares: What it sends that is derived from data, as text for the record; empty if nothing.
    """

    alias: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    needs_individual_updates: ClassVar[bool] = False
    needs_full_participation: ClassVar[bool] = False
    min_clients: ClassVar[int] = 1
    scored_at_sites: ClassVar[bool] = False
    pools_sites: ClassVar[bool] = False
    optimisers: ClassVar[frozenset[str] | None] = None
    objectives: ClassVar[frozenset[str] | None] = None
    replaces_gradients: ClassVar[bool] = False
    references: ClassVar[frozenset[str]] = frozenset()
    gives_privacy: ClassVar[bool] = False
    aggregate_only: ClassVar[bool] = False
    weights_in_payload: ClassVar[bool] = False
    shares: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """Name in expressions, in state and in payload: the alias, or the class's in kebab case."""
        return self.alias or kebab(type(self).__name__)

    def __post_init__(self) -> None:
        for field in settings_of(self):
            check(f"{self.name}.{field.name}", getattr(self, field.name), field.metadata)


def settings_of(owner: object) -> list[dataclasses.Field[Any]]:
    """The fields of a component that were made by :func:`setting`."""
    found = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    return [f for f in found if "doc" in f.metadata]


def check(name: str, value: Any, limits: Any) -> None:
    """Raise if ``value`` is outside the range or the choices of its setting."""
    choices, low, high = limits["choices"], limits["low"], limits["high"]
    if choices is not None and value not in choices:
        raise ConfigError(f"{name} is {value!r}; it takes one of {', '.join(map(str, choices))}")
    if value is None or (low is None and high is None):
        return
    if not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r}; it takes a number")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        span = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{name} is {value}; it must be {span}")


def with_setting(owner: T, name: str, value: Any) -> T:
    """A copy of ``owner`` with one setting changed; ``owner`` itself if it has no such setting."""
    if not any(f.name == name for f in settings_of(owner)):
        return owner
    new = convert(name, value, getattr(owner, name))
    return replace(owner, **{name: new})  # type: ignore[type-var]


def described(owner: Declares) -> dict[str, Any]:
    """Name and settings of a component, as JSON."""
    return {"name": owner.name} | {f.name: getattr(owner, f.name) for f in settings_of(owner)}
