"""Options that several commands share, what they mean, and how results are printed.

Nothing here imports torch: a command imports what it needs when it runs, so that help is instant.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.base.errors import ConfigError


def names(kind: str) -> Callable[[str], list[str]]:
    """What the shell completes: names of a kind, from the kept catalogue."""

    def complete(incomplete: str) -> list[str]:
        from fedshift.cli.catalogue import catalogue

        found = [str(row["name"]) for row in catalogue(kind)]
        return [name for name in found if name.startswith(incomplete)]

    return complete


Backbone = Annotated[
    str | None,
    typer.Option(help="Network; see `fedshift list backbones`.", autocompletion=names("backbones")),
]
Rounds = Annotated[int | None, typer.Option(help="Federated rounds.")]
ClientsPerRound = Annotated[int | None, typer.Option(help="How many clients take part in a round.")]
Without = Annotated[list[str] | None, typer.Option(help="Leave out a part; repeatable.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        help="Allow extra data or knowledge: client_val, public_set, server_unlabelled, "
        "domain_ids, ...; repeatable.",
    ),
]
Grant = Annotated[list[str] | None, typer.Option("--grant", hidden=True, help="Now --allow.")]
Scale = Annotated[
    str | None,
    typer.Option("--scale", help="laptop (default), bench or paper, for papers' scenarios."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="KEY of the method, scenario.KEY, backbone.KEY or data.KEY; repeatable.",
    ),
]
MaxWeight = Annotated[
    float | None,
    typer.Option(
        help="Largest weight of one client in the mean; default: no limit, 0.8 at `server run`."
    ),
]
OnLoss = Annotated[
    str, typer.Option(help="When a site is lost: fail, skip it in this round, or wait for it.")
]
Timeout = Annotated[
    float | None, typer.Option(help="Seconds that one exchange with the sites may take.")
]
MinSites = Annotated[int, typer.Option(help="Answers that a round needs with --on-loss skip.")]
Against = Annotated[
    str | None,
    typer.Option(help="Also the differences to this method, as the table calls it, seed by seed."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Time a warm-up round, say what it all would take, and write nothing."
    ),
]
Executor = Annotated[
    str, typer.Option(help="Where runs are played: local, ray, or slurm (through submitit).")
]
Tune = Annotated[
    int | None,
    typer.Option(
        help="Trials of every method, chosen among on validation data before they are compared.",
        min=1,
    ),
]
ExecutorSet = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-set",
        metavar="KEY=VALUE",
        help="Of the executor: address (ray), slurm_partition, timeout_min, ...; repeatable.",
    ),
]
PrintJobs = Annotated[
    bool,
    typer.Option(
        "--print-jobs",
        help="Play nothing; print one command per run that is left, for any scheduler.",
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", help="Also log to tensorboard or mlflow, in files beside the runs; repeatable."
    ),
]
SiteName = Annotated[
    str | None,
    typer.Option("--name", help="What the site is called; default: the folder's or file's name."),
]
StartSite = Annotated[
    str | None,
    typer.Option("--start", help="A site of the run whose own model is taken; default: for all."),
]
ModelOut = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder of the new model; default models/NAME.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only errors, and the result's path.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]


def tell(result: Any, path: Path, *, as_json: bool, quiet: bool) -> None:
    """A run's numbers as the options ask for them; ``result`` is a RunResult."""
    if as_json:
        typer.echo(json.dumps(result.summary | {"path": str(path)}))
    elif quiet:
        typer.echo(str(path))
    else:
        from rich.console import Console

        from fedshift.report import screen

        Console().print(screen.detail(result))
        typer.echo(f"\nkept in {path}")


def workers_of(text: str) -> int | None:
    """``--workers``: a number, or ``auto`` for one per core."""
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"--workers is {text!r}; it takes a number from 1 on, or auto")
    return int(text)


def visitors_of(text: str, transport: str) -> int | None:
    """``--workers`` of one run: processes that visit clients, which not every transport has."""
    count = workers_of(text)
    if (count or 1) > 1 and transport not in ("auto", "pool", "flower"):
        raise ConfigError(f"transport {transport!r} has one worker; leave out --workers {text}")
    return count


def processes(count: int | None) -> int:
    """How many processes ``--workers`` stands for."""
    from fedshift.base.process import cores

    return count or cores()


def executor_options(items: list[str] | None) -> dict[str, Any]:
    """``--executor-set``: numbers as numbers, everything else as text."""
    from fedshift.base.settings import parse_settings

    given = parse_settings(items or [])
    return {key: int(v) if v.lstrip("-").isdigit() else v for key, v in given.items()}


def folder(path: Path) -> Path:
    """A folder that must exist."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; check the path")
    return path


def flag(option: str) -> str:
    """How the command line spells the argument that an error names.

    Examples:
        >>> flag("resume"), flag("on_loss=wait"), flag("scenario.unseen=DOMAIN")
        ('--resume', '--on-loss wait', '--set scenario.unseen=DOMAIN')
    """
    key, _, value = option.partition("=")
    if "." in key:
        return f"--set {option}"
    return " ".join(filter(None, (f"--{key.replace('_', '-')}", value)))
