"""``fedshift claims``: what papers claim, run and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.cli import options as opt

app = typer.Typer(help="Claims of papers: list them, make their runs, see whether they show.")
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Claims, or papers; all if none.")
]
File = Annotated[Path | None, typer.Option(help="A TOML file of your own claims.")]
Stored = Annotated[Path, typer.Option(help="File of finished runs, one line each.")]
STORED = Path("results/claims.jsonl")


@app.command(name="list")
def list_claims(names: Names = None, file: File = None) -> None:
    """Show each claim: what is compared with what, where, and by which number."""
    from fedshift.claims.claim import chosen, read_claims

    for claim in chosen(read_claims(file), names or []):
        typer.echo(f"{claim.name}{' (main)' if claim.main else ''}: {claim.says}")
        typer.echo(
            f"    {claim.method} against {claim.control}, {claim.protocol} {claim.metric}, rule "
            f"{claim.rule}, equal {claim.equal}; {claim.scenario} at {claim.scale}, "
            f"{claim.seeds} seeds; {claim.paper}"
        )


@app.command(name="run")
def run_claims(
    names: Names = None,
    file: File = None,
    scale: opt.Scale = None,
    results: Stored = STORED,
    out: Annotated[Path, typer.Option(help="Folder of run directories.")] = Path("runs/claims"),
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    hours: Annotated[float, typer.Option(help="Start no run after so many hours.", min=0)] = 0.0,
    executor: opt.Executor = "local",
    executor_set: opt.ExecutorSet = None,
    print_jobs: opt.PrintJobs = False,
    quiet: opt.Quiet = False,
) -> None:
    """Make the runs that are missing, main claims first; the same command continues."""
    from fedshift.base.process import tune_process
    from fedshift.claims.run import plan_claims
    from fedshift.claims.run import run_claims as run_all
    from fedshift.claims.store import Results
    from fedshift.experiment.executors import require_executor
    from fedshift.experiment.progress import ProgressBoard
    from fedshift.report.results import Failure

    require_executor(executor, out)
    tune_process()
    claims = _claims(names, file, scale)
    kept = Results.open(results)
    todo = plan_claims(claims, kept, out)
    for name, why in todo.missing.items():
        typer.echo(f"{name} is left out: {why}", err=print_jobs)
    if print_jobs:
        from fedshift.cli.published import print_commands

        print_commands(todo.jobs)
        return
    typer.echo(f"{len(todo.jobs)} runs to make for {len(todo.sides)} claims")
    failed = False
    with ProgressBoard(quiet=quiet) as board:
        how = {
            "workers": opt.workers_of(workers),
            "hours": hours,
            "executor": executor,
            "executor_options": opt.executor_options(executor_set),
        }
        for one in run_all(todo, kept, board.watch, **how):
            if isinstance(one, Failure):
                failed = True
                typer.echo(f"{one.config.label} did not finish: {one.reason}", err=True)
    table(names, file, scale, results)
    if failed:
        raise typer.Exit(1)


@app.command()
def table(
    names: Names = None,
    file: File = None,
    scale: opt.Scale = None,
    results: Stored = STORED,
) -> None:
    """Print the table of claims with their verdicts, as Markdown; needs the results file only."""
    from fedshift.claims.run import kept_sides
    from fedshift.claims.store import Results
    from fedshift.claims.table import judge, markdown

    claims = _claims(names, file, scale)
    kept = Results.open(results)
    typer.echo(markdown(judge(claims, kept_sides(claims, kept), kept.rows)), nl=False)


def _claims(names: list[str] | None, file: Path | None, scale: str | None) -> list[Any]:
    """The chosen claims, at another scale if one is given."""
    from fedshift.claims.claim import Claim, chosen, read_claims

    found = chosen(read_claims(file), names or [])
    if scale is None:
        return found
    return [Claim.model_validate(claim.model_dump() | {"scale": scale}) for claim in found]
