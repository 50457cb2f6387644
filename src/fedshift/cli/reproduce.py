"""``fedshift reproduce``: tables and figures of papers, beside the paper's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedshift.cli import options as opt
from fedshift.cli.claims import STORED, Stored


def names_of_recipes(incomplete: str) -> list[str]:
    """What the shell completes."""
    from fedshift.recipes.read import names

    return [name for name in ["list", *names()] if name.startswith(incomplete)]


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="list | NAME...",
            help="fdse/table1, a paper such as fdse, all, or a TOML file of your own; list shows "
            "them.",
            autocompletion=names_of_recipes,
        ),
    ],
    scale: Annotated[
        Literal["laptop", "bench", "paper"], typer.Option(help="Of all scenarios.")
    ] = "laptop",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print runs, parameters, missing data and hours; train nothing."
        ),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds 0 to N-1; default: the recipe's.", min=1)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="Rows to make, by name or method; repeatable."),
    ] = None,
    hours: Annotated[float, typer.Option(help="Start no run after so many hours.", min=0)] = 0.0,
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    out: Annotated[
        Path, typer.Option(help="Folder of run directories; figures go to its folder figures.")
    ] = Path("runs/claims"),
    results: Stored = STORED,
    form: Annotated[
        Literal["md", "latex", "csv", "html"], typer.Option("--format", help="Of the table.")
    ] = "md",
    executor: opt.Executor = "local",
    executor_set: opt.ExecutorSet = None,
    print_jobs: opt.PrintJobs = False,
    quiet: opt.Quiet = False,
) -> None:
    """Make the runs of papers' tables and figures, and print paper and ours side by side.

    The same command continues; runs are shared with `fedshift claims`.
    """
    if names == ["list"]:
        _list()
        return
    from fedshift.claims.store import Results
    from fedshift.experiment.executors import require_executor
    from fedshift.recipes.read import find_recipes, require_known

    require_executor(executor, out)
    found, wanted = find_recipes(names), only or []
    require_known(found, wanted)
    kept = Results.open(results)
    how = {
        "workers": opt.workers_of(workers),
        "hours": hours,
        "executor": executor,
        "executor_options": opt.executor_options(executor_set),
    }
    if dry_run:
        _dry_run(found, scale, kept, wanted, seeds)
        return
    plans = _planned(found, scale, out, wanted, seeds)
    if print_jobs:
        from fedshift.cli.published import print_commands
        from fedshift.recipes.plan import left_to_run

        print_commands(left_to_run(plans, kept))
        return
    failed = _run(plans, kept, how, quiet=quiet)
    _print(plans, kept, form, out)
    if failed:
        raise typer.Exit(1)


def _list() -> None:
    """One line per recipe."""
    from fedshift.recipes.read import find_recipes

    for recipe in find_recipes(["all"]):
        used = dict.fromkeys(c.scenario for c in recipe.column if c.scenario)
        kind = f"figure ({recipe.analysis or 'numbers'})" if recipe.kind == "figure" else "table"
        typer.echo(f"{recipe.name}: {recipe.caption}")
        typer.echo(f"    {kind}, {len(recipe.rows)} rows; {', '.join(used)}")


def _dry_run(found: list[Any], scale: Any, kept: Any, wanted: list[str], seeds: int | None) -> None:
    """Print what the recipes would take, each and in all."""
    from fedshift.recipes.forecast import forecast, together
    from fedshift.recipes.read import only

    total: list[Any] = []
    for recipe in found:
        lines, told = forecast(recipe, scale, kept, rows=only(recipe, wanted), seeds=seeds)
        _tell(f"{recipe.name} at {scale}", lines, told, alone=len(found) == 1)
        total += lines
    total = together(total)
    left = sum(line.runs - line.kept for line in total if not line.missing)
    lacking = sum(line.runs for line in total if line.missing)
    hours = sum(line.left for line in total if not line.missing) / 3600
    typer.echo(
        f"in all: {left} different runs, about {hours:.2f} hours with one process, and {lacking} "
        "runs whose data are missing; nothing was trained. Times are those of finished runs where "
        "there are any, else of a step of the bare net on noise: scoring and further passes come "
        "on top."
    )


def _tell(title: str, lines: list[Any], told: list[str], *, alone: bool) -> None:
    """Print one recipe: a table of its runs if it is the only one, and what cannot be made."""
    from rich.console import Console

    from fedshift.base.times import duration
    from fedshift.report.fitted import FittedTable

    can = [line for line in lines if not line.missing]
    left = sum(line.runs - line.kept for line in can)
    head = f"{title}: {left} runs to make, about {duration(sum(line.left for line in can))}"
    heads = ["scenario", "runs of each", "rounds", "local work", "clients", "steps", "a run"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for line in can:
        numbers = (str(line.clients), f"{line.steps:,}", duration(line.seconds))
        runs = f"{line.runs} ({line.kept} kept)"
        key = (line.scenario, runs, str(line.rounds), line.work, *numbers)
        alike.setdefault(key, []).append(line.method)
    rows = [[", ".join(methods), *key] for key, methods in alike.items()]
    if alone and rows:
        Console().print(FittedTable(head, ["methods", *heads], rows))
    else:
        typer.echo(head)
    for text in dict.fromkeys(line.missing for line in lines if line.missing):
        typer.echo(f"    missing: {text}")
    for text in told:
        typer.echo(f"    not made: {text}")


def _planned(
    found: list[Any], scale: Any, out: Path, wanted: list[str], seeds: int | None
) -> list[Any]:
    """Plan all recipes before the first run starts."""
    from fedshift.base.process import tune_process
    from fedshift.recipes.plan import plan_recipe
    from fedshift.recipes.read import only

    tune_process()
    return [plan_recipe(r, scale, out, rows=only(r, wanted), seeds=seeds) for r in found]


def _run(plans: list[Any], kept: Any, how: dict[str, Any], *, quiet: bool) -> bool:
    """Make what is left, all recipes together; whether a run failed."""
    from fedshift.claims.run import make_runs
    from fedshift.experiment.progress import ProgressBoard
    from fedshift.recipes.plan import keep, left_to_run
    from fedshift.report.results import Failure

    for one in plans:
        keep(one, kept)
    todo = left_to_run(plans, kept)
    typer.echo(f"{len(todo)} runs to make for {len(plans)} recipes", err=True)
    failed = False
    with ProgressBoard(quiet=quiet) as board:
        for done in make_runs(todo, kept, board.watch, **how):
            if isinstance(done, Failure):
                failed = True
                typer.echo(f"{done.config.label} did not finish: {done.reason}", err=True)
    return failed


def _print(plans: list[Any], kept: Any, form: str, out: Path) -> None:
    """Print the tables with every run that was ever planned for them, and draw the figures."""
    from fedshift.recipes.figure import draw
    from fedshift.recipes.formats import FORMATS
    from fedshift.recipes.plan import kept_plan
    from fedshift.recipes.table import fill

    for one in plans:
        whole = kept_plan(one.recipe, one.scale, kept)
        whole.why |= one.why
        typer.echo(FORMATS[form](fill(whole, kept.rows)))
        for line in draw(whole, kept.rows, out):
            typer.echo(line, err=True)
