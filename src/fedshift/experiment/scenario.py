"""Find the scenario that a user asks for by name, scale and changed values.

Python callers use :func:`find_scenario`; the command line, run files and Flower apps use
:func:`scenario_from`, where values are text and ``partition.alpha=0.1`` sets a nested option. An
unknown name or option must be an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch
from pydantic import BaseModel, ValidationError

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.settings import parse_settings
from fedshift.core.registry import SCENARIOS
from fedshift.core.registry import build as build_method
from fedshift.core.scenario import Scale, Scenario, one_line
from fedshift.data.dealing.partitions import Partition
from fedshift.data.dealing.splits import Split
from fedshift.data.library.loaded import datasets, load
from fedshift.data.samples import Domain

NESTED = ("partition", "split", "unseen_split")  # options that have options of their own
KINDS: dict[str, dict[str, type[BaseModel]]] = {  # the rules that each of them chooses from
    name: {rule.model_fields["kind"].default: rule for rule in get_args(get_args(union)[0])}
    for name, union in (("partition", Partition), ("split", Split))
}


def find_scenario(name: str | Scenario, *, scale: str | None = None, **changes: Any) -> Scenario:
    """A scenario by name, with the given values changed (None leaves a value as it is).

    ``scale`` is ``laptop`` (default), ``bench`` or ``paper``, for the scenarios of papers. The name
    of a data set is accepted too: one client per domain.
    """
    base = name if isinstance(name, Scenario) else named_scenario(name, scale)
    return base.change(**{k: v for k, v in changes.items() if v is not None})


def complete_scenario(values: dict[str, Any]) -> Scenario:
    """A scenario from a complete table of its values."""
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"scenario: {one_line(error)}") from None


def named_scenario(name: str, scale: str | None) -> Scenario:
    """A registered scenario, or the default for a data set: one client per domain, its own split.

    The split is the one that comes with the data. Where they mark no test rows, a fifth was drawn
    when they were prepared, which ``fedshift data inspect`` shows too.
    """
    known = SCENARIOS.entries()
    if name not in known and name in datasets():
        return usual_scenario(name, load(name))
    if name not in known:
        raise UnknownNameError.of("scenario or dataset", name, {*known, *datasets()})
    entry = known[name]
    if scale and "scale" not in entry.options:
        raise ConfigError(f"scenario {name!r} comes in one scale; leave out scale={scale!r}")
    return entry.build(**({"scale": scale} if scale else {}))


def usual_scenario(name: str, stores: Mapping[str, Domain]) -> Scenario:
    """The default for a data set that is loaded under ``name``: one client per domain."""
    first = next(iter(stores.values()))
    return Scenario(
        name=name,
        data=name,
        domains=tuple(stores),
        objective=first.objective,
        target=usual_range(stores) if first.objective == "regression" else (0.0, 1.0),
        backbone="cnn" if first.x.dim() == 4 else "mlp",
    )


def usual_range(stores: Mapping[str, Domain]) -> tuple[float, float]:
    """Mean and deviation of the numbers to predict, of two digits: the net learns (y - m) / s.

    Like every value of a scenario it is written into the run's configuration, and can be set.
    """
    rows = torch.cat([d.y[d.rows(0)] for d in stores.values()]).double()
    shift, scale = (float(f"{float(v):.2g}") for v in (rows.mean(), rows.std(correction=0)))
    return shift, scale or 1.0


def split_settings(
    items: list[str] | None, **options: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """Split ``KEY=VALUE`` items into settings of the method and changes of the scenario.

    ``scenario.KEY`` changes the scenario, ``backbone.KEY`` and ``data.KEY`` their options; all
    others belong to the method. ``options`` are changes that have a command-line option of their
    own: None means that it was not given, while ``scenario.KEY=none`` sets a value to None.
    """
    own: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for key, value in parse_settings(items or []).items():
        owner, _, name = key.partition(".")
        if owner == "scenario":
            changes[name] = None if value.lower() == "none" else value
        elif owner in ("backbone", "data"):
            changes.setdefault(f"{owner}_options", {})[name] = number_or_text(value)
        else:
            own[key] = value
    return own, changes | {k: v for k, v in options.items() if v is not None}


def number_or_text(value: str) -> int | float | str:
    """Convert an option of a backbone or data set, which has no declared type, from text."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def scenario_from(
    name: str | Scenario, scale: str | None, allow: list[str] | None, changes: dict[str, Any]
) -> Scenario:
    """A scenario from text: name, scale, additional allowed resources, and changed values."""
    if scale not in (None, *get_args(Scale)):
        raise ConfigError(f"scale is {scale!r}; it takes laptop, bench or paper", "scale=laptop")
    base = find_scenario(name, scale=scale)
    given = dict(changes)
    if allow:
        given["allow"] = tuple(dict.fromkeys((*base.allow, *allow)))
    given |= merged_options(base, given)
    nested: dict[str, dict[str, Any]] = {}
    for key in [k for k in given if "." in k]:
        owner, _, part = key.partition(".")
        if owner not in NESTED:
            raise ConfigError(f"scenario has no option {key!r}; did you mean scenario.{part}?")
        nested.setdefault(owner, {})[part] = given.pop(key)
    for owner, parts in nested.items():
        given[owner] = nested_option(base, owner, parts)
    return base.change(**given)


def merged_options(base: Scenario, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options of backbone and data: those of ``base`` with the given ones on top.

    Another backbone begins at its own defaults: an option of the old one means nothing to it.
    """
    out = {}
    for key in ("backbone_options", "data_options"):
        if key not in given:
            continue
        if not isinstance(given[key], Mapping):
            raise ConfigError(f"{key} is {given[key]!r}; it takes names with values")
        out[key] = getattr(base, key) | given[key]
    if given.get("backbone", base.backbone) != base.backbone:
        out["backbone_options"] = given.get("backbone_options", {})
    return out


def nested_option(base: Scenario, owner: str, parts: dict[str, Any]) -> dict[str, Any]:
    """A split or partition with some values changed; another ``kind`` begins at its defaults.

    A value of the old kind means nothing to the new one, so none is carried over.
    """
    kinds = KINDS["partition" if owner == "partition" else "split"]
    held = getattr(base, owner) or base.split
    kind = str(parts.get("kind", held.kind))
    if kind not in kinds:
        raise UnknownNameError.of(f"kind of scenario.{owner}", kind, kinds)
    for part in parts:
        if part not in kinds[kind].model_fields:
            raise UnknownNameError.of(f"option of {owner} {kind!r}", part, kinds[kind].model_fields)
    return (held.model_dump() if kind == held.kind else {"kind": kind}) | parts


def require_clear(method: str, settings: Iterable[str]) -> None:
    """Raise if a setting of the method, given by its bare name, could mean the scenario's option.

    ``lr`` alone would be the server's rate under most methods, where people mean the clients'.
    """
    for key in settings:
        if key not in Scenario.model_fields:
            continue
        own = build_method(method).settings()
        owners = [f"{owner}.{name}" for owner, name, _ in own if name == key]
        if owners:
            names = " or ".join([f"scenario.{key}", *owners])
            raise ConfigError(f"{key!r} is ambiguous; say {names}")
        raise ConfigError(f"{key!r} is an option of the scenario; say scenario.{key}")
