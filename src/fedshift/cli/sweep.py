"""``fedshift sweep``: one method with several settings, and the one that validation data choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.base.errors import ConfigError
from fedshift.cli import options as opt


def sweep(
    method: Annotated[
        str,
        typer.Argument(
            help='Method, such as fedprox or "fedavg + mixup".',
            autocompletion=opt.names("methods"),
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="An axis: mu=0.01,0.1 or scenario.lr=0.1,0.3; with --random or --optuna also a "
            "range, mu=0.001:1:log; repeatable.",
        ),
    ],
    settings: opt.Settings = None,
    scenario: Annotated[str, typer.Option(help="See `fedshift list scenarios`.")] = "digits",
    scale: opt.Scale = None,
    backbone: opt.Backbone = None,
    rounds: opt.Rounds = None,
    clients_per_round: opt.ClientsPerRound = None,
    max_weight: opt.MaxWeight = None,
    seeds: Annotated[int, typer.Option(help="Of each setting, the seeds 0 to N-1.", min=1)] = 1,
    random: Annotated[
        int | None, typer.Option(help="Draw so many settings instead of all combinations.", min=1)
    ] = None,
    optuna: Annotated[
        int | None,
        typer.Option(help="Let Optuna propose so many, and give up those that fall behind.", min=1),
    ] = None,
    search_seed: Annotated[int, typer.Option(help="Of the settings that are drawn.")] = 0,
    protocol: Annotated[
        str | None,
        typer.Option(help="Whose validation score counts; default: the scenario's first."),
    ] = None,
    allow: opt.Allow = None,
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of run directories.")] = Path("runs"),
    executor: opt.Executor = "local",
    executor_set: opt.ExecutorSet = None,
    print_jobs: opt.PrintJobs = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train a method with several settings, choose one on validation data, and print the table."""
    from fedshift.base.process import tune_process
    from fedshift.experiment.points import read_axis
    from fedshift.experiment.progress import ProgressBoard
    from fedshift.experiment.scenario import scenario_from, split_settings
    from fedshift.experiment.sweep import Search
    from fedshift.experiment.sweep import sweep as play_sweep

    own, changes = split_settings(
        settings,
        backbone=backbone,
        rounds=rounds,
        clients_per_round=clients_per_round,
        max_weight=max_weight,
    )
    if own:
        key = next(iter(own))
        raise ConfigError(f"--set {key} is the method's; write it as METHOD[{key}={own[key]}]")
    axes = [read_axis(text) for text in over]
    if twice := [a.key for i, a in enumerate(axes) if a.key in {b.key for b in axes[:i]}]:
        raise ConfigError(f"--over {twice[0]} is given twice; list its values in one")
    values = {axis.key: text.partition("=")[2] for axis, text in zip(axes, over, strict=True)}
    chosen = scenario_from(scenario, scale, list(allow or ()), dict(changes))
    tune_process()
    if print_jobs:
        from fedshift.cli.published import print_commands

        if optuna is not None:
            raise ConfigError("Optuna proposes settings as it goes; --print-jobs needs --random")
        search = Search.of(method, chosen, values, seeds=range(seeds), out=out, seed=search_seed)
        print_commands([j for own in search.plan(search.points(random)) for j in own])
        return
    with ProgressBoard(quiet=quiet) as board:
        found = play_sweep(
            method,
            chosen,
            over=values,
            seeds=range(seeds),
            random=random,
            optuna=optuna,
            search_seed=search_seed,
            protocol=protocol,
            out=out,
            workers=opt.workers_of(workers),
            watch=board.watch,
            executor=executor,
            executor_options=opt.executor_options(executor_set),
        )
    tell(found, out, as_json=as_json, quiet=quiet)


def tell(found: Any, out: Path, *, as_json: bool, quiet: bool) -> None:
    """The table on the screen; all formats and the picture on disk. ``found`` is a Sweep."""
    from fedshift.report.sweep_files import write

    file = write(found, out / "sweeps")
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    elif quiet:
        typer.echo(str(file))
    else:
        from rich.console import Console
        from rich.text import Text

        from fedshift.report.fitted import FittedTable

        console = Console()
        console.print(FittedTable(f"sweep of {found.title}", found.headings, found.lines))
        console.print(Text(f"{found.note}."))
        typer.echo(f"kept in {file.with_suffix('')}.*")
