"""Options that several commands share, and what they mean to a scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedshift.errors import ConfigError
from fedshift.experiment import find_scenario
from fedshift.registry import parse_settings
from fedshift.report import screen
from fedshift.results import RunResult
from fedshift.scenario import Scenario

Backbone = Annotated[str | None, typer.Option(help="Network; see `fedshift list backbones`.")]
Rounds = Annotated[int | None, typer.Option(help="Federated rounds.")]
ClientsPerRound = Annotated[int | None, typer.Option(help="How many clients take part in a round.")]
Grant = Annotated[list[str] | None, typer.Option(help="Let methods use a resource; repeatable.")]
ScaleOption = Annotated[
    str | None, typer.Option("--scale", help="laptop (default) or paper, for papers' scenarios.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="KEY of the method, scenario.KEY, backbone.KEY or data.KEY; repeatable.",
    ),
]
OnLoss = Annotated[
    str, typer.Option(help="When a site is lost: fail, skip it in this round, or wait for it.")
]
Timeout = Annotated[
    float | None, typer.Option(help="Seconds that one exchange with the sites may take.")
]
MinSites = Annotated[int, typer.Option(help="Answers that a round needs with --on-loss skip.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only errors, and the result's path.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]


def split_settings(
    items: list[str] | None, **options: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """``--set`` values: those of the method, and changes of the scenario.

    ``options`` are changes that have an option of their own; one that is None was not given, while
    ``--set scenario.KEY=none`` takes a value away.
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
    """An option of a backbone or a dataset has no declared type on the command line."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def placed(
    name: str | Scenario, scale: str | None, grants: list[str] | None, changes: dict[str, Any]
) -> Scenario:
    """The scenario of a command line."""
    if scale not in (None, "laptop", "paper"):
        raise ConfigError(f"--scale is {scale!r}; it takes laptop or paper")
    base = find_scenario(name, scale=scale)
    given = dict(changes)
    if grants:
        given["grants"] = tuple(dict.fromkeys((*base.grants, *grants)))
    for key in ("backbone_options", "data_options"):
        if key in given:
            given[key] = getattr(base, key) | given[key]
    for key in [k for k in given if "." in k]:
        owner, _, part = key.partition(".")
        if owner not in ("partition", "split", "unseen_split"):
            raise ConfigError(f"scenario has no option {key!r}; did you mean scenario.{part}?")
        old = getattr(base, owner)
        given[owner] = given.get(owner, old.model_dump() if old else {}) | {part: given.pop(key)}
    return base.change(**given)


def tell(result: RunResult, path: Path, *, as_json: bool, quiet: bool) -> None:
    """A run's numbers as the options ask for them."""
    if as_json:
        typer.echo(json.dumps(result.summary | {"path": str(path)}))
    elif quiet:
        typer.echo(str(path))
    else:
        Console().print(screen.detail(result))
        typer.echo(f"\nkept in {path}")


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
