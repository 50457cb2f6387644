"""What ``fedshift compare`` and ``demo`` read from their options, and print in the end."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import typer


def split_methods(items: list[str]) -> list[str]:
    """Expressions at commas, except those inside brackets."""
    out, depth, word = [], 0, ""
    for char in ",".join(items):
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            out.append(word.strip())
            word = ""
        else:
            word += char
    return [w for w in [*out, word.strip()] if w]


def publish(found: Any, out: Path, *, as_json: bool, quiet: bool) -> None:
    """Table on the screen, page on disk; a failed run is told and makes the exit code 1."""
    from rich.console import Console

    from fedshift.report import html, screen

    page = html.write(found, out / "report.html") if found.results else None
    if as_json:
        failed = [{"run": f.config.name, "reason": f.reason} for f in found.failures]
        typer.echo(json.dumps({"runs": [r.summary for r in found.results], "failed": failed}))
    elif quiet:
        typer.echo(str(page or out))
    else:
        if found.results:
            Console().print(screen.console(found))
        typer.echo(f"report: {page}")
    for note in found.notes:
        typer.echo(f"older data: {note}", err=True)
    for failure in found.failures:
        typer.echo(f"failed: {failure.config.name}: {failure.reason}", err=True)
    if found.failures:
        raise typer.Exit(1)


def logged(watch: Any, log: list[str] | None, out: Path) -> Any:
    """``--log``: the listeners of runs, which then tell trackers too."""
    if not log:
        return watch
    from fedshift.experiment.trackers import tracked

    return tracked(watch, log, out)


def print_commands(jobs: Any) -> None:
    """One command per run that is left; ``jobs`` are those of a plan."""
    from fedshift.experiment.job_files import job_files

    for file, path in job_files(jobs):
        words = ["fedshift", "run", str(file), "--out", str(path)]
        typer.echo(shlex.join([*words, "--requeue", "--workers", "1", "--quiet"]))


def announce(
    found: list[tuple[Any, int]], processes: int, *, as_json: bool = False, dry: bool = True
) -> None:
    """What runs take, by method and scenario and in all; ``found`` has (Estimate, runs).

    Before runs that are not ``dry`` it is on the error stream, where progress is.
    """
    together = min(processes, sum(max(e.clients, 1) * runs for e, runs in found) or 1)
    seconds = sum(e.seconds * runs for e, runs in found) / together
    if as_json:
        rows = [e.to_json() | {"runs": runs} for e, runs in found]
        typer.echo(json.dumps({"runs": rows, "processes": together, "seconds": seconds}))
        return
    from rich.console import Console

    from fedshift.base.times import duration
    from fedshift.report.fitted import FittedTable
    from fedshift.report.tables import size

    heads = [
        "method",
        "scenario",
        "runs",
        "rounds",
        "steps",
        "time",
        "up",
        "down",
        "memory",
        "disk",
    ]
    lines = [
        [e.method, e.scenario, str(runs), str(e.rounds), f"{e.steps:,}", duration(e.seconds)]
        + [size(value) for value in (e.up, e.down, e.memory, e.disk)]
        for e, runs in found
    ]
    table = FittedTable("one run of each, with one process", heads, lines)
    Console(stderr=not dry).print(table)
    end = "; nothing was written" if dry else ""
    typer.echo(f"in all: about {duration(seconds)} with {together} processes{end}", err=not dry)
