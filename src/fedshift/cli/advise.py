"""``fedshift advise``: which method to take for a question, after a short comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, TypeGuard

import typer

from fedshift.base.errors import ConfigError
from fedshift.cli import options as opt

UNITS = {"": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}


def advise(
    data: Annotated[
        str | None,
        typer.Argument(help="A dataset, a scenario, or a run file, whose scenario is taken."),
    ] = None,
    question: Annotated[
        str, typer.Option(help="single, per-site, unseen or unlabelled: the best model where?")
    ] = "single",
    scenario: Annotated[
        str | None,
        typer.Option(
            help="The same as DATA; default digits.",
            autocompletion=opt.names("scenarios"),
        ),
    ] = None,
    scale: opt.Scale = None,
    settings: opt.Settings = None,
    backbone: opt.Backbone = None,
    rounds: opt.Rounds = None,
    allow: opt.Allow = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="What one site may send in a whole run, such as 50MB.")
    ] = None,
    privacy: Annotated[
        str, typer.Option(help="none, local-dp, secure-aggregation or central-dp, for all.")
    ] = "none",
    minutes: Annotated[
        float | None, typer.Option(help="For all of it; fewer rounds if they do not fit.")
    ] = None,
    hours: Annotated[float | None, typer.Option(help="The same in hours.")] = None,
    seeds: Annotated[int, typer.Option(help="On which the best is compared in the end.")] = 3,
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of runs and of the advice.")] = Path("advice"),
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Say which method to take, by how much, how surely and at what cost."""
    from fedshift.base.process import tune_process
    from fedshift.experiment.progress import ProgressBoard
    from fedshift.experiment.scenario import scenario_from, split_settings
    from fedshift.guide.advise import advise as find
    from fedshift.guide.advise import scenario_for

    if data is not None and scenario is not None:
        raise ConfigError(f"{data} is or has a scenario; leave out --scenario {scenario}")
    if minutes is not None and hours is not None:
        raise ConfigError("--minutes and --hours are one budget; give one")
    own, changes = split_settings(settings, backbone=backbone, rounds=rounds)
    if own:
        raise ConfigError(f"--set {next(iter(own))} is a method's; advise sets the scenario's only")
    base = scenario_for(Path(data), {}) if is_file(data) else data or scenario or "digits"
    chosen = scenario_from(base, scale, list(allow or ()), dict(changes))
    tune_process()
    with ProgressBoard(quiet=quiet) as board:
        found = find(
            chosen,
            question=question,
            max_bytes=bytes_of(max_bytes),
            privacy=privacy,
            minutes=60 * hours if hours is not None else minutes,
            seeds=seeds,
            out=out,
            workers=opt.workers_of(workers),
            watch=board.watch,
            tell=board.tell,
        )
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    elif quiet:
        typer.echo(str(out / "advice.toml"))
    else:
        show(found, out)


def is_file(data: str | None) -> TypeGuard[str]:
    """Whether what was given is a run file or a run, and no name."""
    if data is None:
        return False
    path = Path(data)
    return path.suffix == ".toml" or path.is_file() or (path / "experiment.toml").exists()


def show(found: object, out: Path) -> None:
    """The sentences, the table, and where they are kept; ``found`` is an Advice."""
    from rich.console import Console
    from rich.text import Text

    from fedshift.guide.advise_lines import HEADS
    from fedshift.guide.advise_result import Advice
    from fedshift.report.fitted import FittedTable

    assert isinstance(found, Advice)
    console = Console()
    console.print(Text(found.text))
    title = f"{found.question}: {found.scenario}"
    console.print(FittedTable(title, HEADS, [line.texts for line in found.lines]))
    console.print(Text(found.note))
    for method, reason in found.left_out:
        console.print(Text(f"left out: {method}: {reason}"))
    typer.echo(f"kept in {out / 'advice.md'}; to train it: fedshift run {out / 'advice.toml'}")


def bytes_of(text: str | None) -> float | None:
    """``--max-bytes``: a number with or without a unit.

    >>> bytes_of("50MB"), bytes_of("1.5 kB"), bytes_of("800")
    (50000000.0, 1500.0, 800.0)
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmg]?b?)\s*", text.lower())
    unit = "" if match is None or match[2] == "b" else match[2].rstrip("b")
    if match is None:
        raise ConfigError(f"--max-bytes is {text!r}; it takes a size such as 800kB, 50MB or 2GB")
    return float(match[1]) * UNITS[f"{unit}b" if unit else ""]
