"""Options that several commands share, and what they mean to a scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedshift.base.errors import ConfigError
from fedshift.report import screen
from fedshift.report.results import RunResult

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
