"""``fedshift analyse``: a table, a figure and a sentence about finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.base.errors import ConfigError
from fedshift.cli import options as opt
from fedshift.cli.ledger import plain

SHOWN = 40  # rows of a table on the screen


def analyse(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="What to look at; `--list` names them.",
            autocompletion=opt.names("analyses"),
        ),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS...", help="Run directories, or folders of them."),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "-o", "--out", help="File to write: png, svg, pdf, csv, json or md; repeatable."
        ),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Whose scores; by default the first that all runs have.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the kind, key=value; repeatable."),
    ] = None,
    mixed: Annotated[
        bool,
        typer.Option("--mixed", help="Accept runs of different scenarios, and label them."),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Name the kinds, or the options of one.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Analyse finished runs: curves, cost, features, calibration, distances and more."""
    if listed or kind is None:
        if not listed:
            raise ConfigError("say what to look at and in which runs; --list names the kinds")
        _list(kind)
        return
    from fedshift.analyse import registry
    from fedshift.analyse.finding import as_json as in_json
    from fedshift.base.process import tune_process
    from fedshift.base.settings import parse_settings

    registry.ANALYSES.get(kind)  # an unknown name is told before runs are read
    given: dict[str, Any] = dict(parse_settings(settings or []))
    given |= {"protocol": protocol} if protocol else {}
    given |= {"mixed": True} if mixed else {}
    found = _load(runs or [])
    tune_process()
    finding = registry.analyse(kind, found, **given)
    written = [finding.write(path) for path in out or []]
    if as_json:
        typer.echo(in_json(finding), nl=False)
        return
    typer.echo(plain(finding.sentence))
    _print(finding)
    for path in written:
        typer.echo(f"written: {path}")


def _load(paths: list[Path]) -> list[Any]:
    """The finished runs of directories and folders, each once, in the order given."""
    from fedshift.report.load import load_comparison, load_run

    if not paths:
        raise ConfigError("there are no runs to look at; name run directories, or folders of them")
    found: dict[Path, Any] = {}
    for path in paths:
        folder = opt.folder(path)
        single = (folder / "config.json").exists()
        for run in [load_run(folder)] if single else load_comparison(folder).results:
            found.setdefault((run.path or folder).resolve(), run)
    return list(found.values())


def _list(kind: str | None) -> None:
    """The kinds with what they show, or the options of one with their defaults."""
    from fedshift.cli.catalogue import catalogue, print_catalogue

    if kind is None:
        print_catalogue(catalogue("analyses"))
        return
    from fedshift.analyse import ANALYSES, options_of

    entry = ANALYSES.get(kind)
    typer.echo(f"{kind}: {entry.summary}")
    for name, parameter in options_of(kind).items():
        told = entry.option_doc(name)
        typer.echo(f"  {name}={parameter.default}  {told}".rstrip())


def _print(finding: Any) -> None:
    """The table, its head if it is long, and the notes."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedshift.analyse.finding import columns, shown

    names = columns(finding.table)
    table = Table(box=None, pad_edge=False)
    for name in names:
        number = all(not isinstance(row[name], str) for row in finding.table)
        table.add_column(name, justify="right" if number else "left")
    for row in finding.table[:SHOWN]:
        table.add_row(*(Text(plain(shown(row[name]))) for name in names))
    Console(width=None if Console().is_terminal else 160).print(table)
    if len(finding.table) > SHOWN:
        typer.echo(f"... {len(finding.table) - SHOWN} more rows; write a csv to have them all")
    for note in finding.notes:
        typer.echo(f"note: {plain(note)}")
