"""Find the scenario that a user asks for by name, scale and changed values.

Python callers use :func:`find_scenario`; the command line, run files and Flower apps use
:func:`scenario_from`, where values are text and ``partition.alpha=0.1`` sets a nested option. An
unknown name or option must be an error, never ignored.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from fedshift.base.errors import ConfigError
from fedshift.base.settings import parse_settings
from fedshift.core.registry import SCENARIOS
from fedshift.core.scenario import Scenario, one_line
from fedshift.data.dealing.splits import Random
from fedshift.data.library.loaded import datasets, load

NESTED = ("partition", "split", "unseen_split")  # options that have options of their own


def find_scenario(name: str | Scenario, *, scale: str | None = None, **changes: Any) -> Scenario:
    """A scenario by name, with the given values changed (None leaves a value as it is).

    ``scale`` is ``laptop`` (default) or ``paper``, for the scenarios of papers. The name of a data
    set is accepted too: one client per domain.
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
    """A registered scenario, or the default for a data set: one client per domain, 80/10/10."""
    if name not in SCENARIOS.entries() and name in datasets():
        stores = load(name)
        images = next(iter(stores.values())).x.dim() == 4
        return Scenario(
            name=name,
            data=name,
            domains=tuple(stores),
            split=Random(),
            backbone="cnn" if images else "mlp",
        )
    entry = SCENARIOS.get(name)
    if scale and "scale" not in entry.options:
        raise ConfigError(f"scenario {name!r} comes in one scale; leave out scale={scale!r}")
    return entry.build(**({"scale": scale} if scale else {}))


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
    if scale not in (None, "laptop", "paper"):
        raise ConfigError(f"scale is {scale!r}; it takes laptop or paper", "scale=laptop")
    base = find_scenario(name, scale=scale)
    given = dict(changes)
    if allow:
        given["allow"] = tuple(dict.fromkeys((*base.allow, *allow)))
    for key in ("backbone_options", "data_options"):
        if key in given:
            given[key] = getattr(base, key) | given[key]
    for key in [k for k in given if "." in k]:
        owner, _, part = key.partition(".")
        if owner not in NESTED:
            raise ConfigError(f"scenario has no option {key!r}; did you mean scenario.{part}?")
        old = getattr(base, owner)
        given[owner] = given.get(owner, old.model_dump() if old else {}) | {part: given.pop(key)}
    return base.change(**given)
