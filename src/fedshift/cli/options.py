"""Options that several commands share, and what they mean to a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.errors import ConfigError
from fedshift.experiment import find_scenario
from fedshift.registry import parse_settings
from fedshift.scenario import Scenario

Backbone = Annotated[str | None, typer.Option(help="Network; see `fedshift list backbones`.")]
Rounds = Annotated[int | None, typer.Option(help="Federated rounds.")]
ClientsPerRound = Annotated[int | None, typer.Option(help="How many clients take part in a round.")]
Grant = Annotated[list[str] | None, typer.Option(help="Let methods use a resource; repeatable.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting: KEY of the method, scenario.KEY or backbone.KEY; repeatable.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only errors, and the result's path.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]


def split_settings(items: list[str] | None) -> tuple[dict[str, str], dict[str, Any]]:
    """``--set`` values: those of the method, and changes of the scenario."""
    own: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for key, value in parse_settings(items or []).items():
        owner, _, name = key.partition(".")
        if owner == "scenario":
            changes[name] = None if value.lower() == "none" else value
        elif owner == "backbone":
            changes.setdefault("backbone_options", {})[name] = number_or_text(value)
        else:
            own[key] = value
    return own, changes


def number_or_text(value: str) -> int | float | str:
    """A backbone's option has no declared type on the command line."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def placed(name: str, grants: list[str] | None, changes: dict[str, Any]) -> Scenario:
    """The scenario of a command line."""
    base = find_scenario(name)
    given = {k: v for k, v in changes.items() if v is not None}
    if grants:
        given["grants"] = tuple(dict.fromkeys((*base.grants, *grants)))
    if options := given.get("backbone_options"):
        given["backbone_options"] = base.backbone_options | options
    nested = {k: v for k, v in given.items() if "." in k}
    for key in nested:
        owner, _, field = key.partition(".")
        if owner != "partition":
            raise ConfigError(f"scenario has no option {key!r}; did you mean scenario.{field}?")
        value = given.pop(key)
        plan = given.get("partition", base.partition.model_dump())
        given["partition"] = plan | {field: value}
    return base.change(**given)


def workers_of(text: str) -> int | None:
    """``--workers``: a number, or ``auto`` for one per core."""
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"--workers is {text!r}; it takes a number from 1 on, or auto")
    return int(text)


def folder(path: Path) -> Path:
    """A folder that must exist."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; check the path")
    return path
