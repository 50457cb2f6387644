"""``fedshift data``: what datasets there are, preparing them, adding your own, looking inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedshift.base.errors import DataError
from fedshift.base.settings import parse_settings
from fedshift.cli import options as opt
from fedshift.cli.catalogue import print_catalogue
from fedshift.data.catalogue import CARDS, Card, Recipe
from fedshift.data.library import inspection
from fedshift.data.library.datasets import add as add_own
from fedshift.data.library.datasets import card_of, own_cards, recipe_of
from fedshift.data.library.prepare import Report, prepared, store_of
from fedshift.data.library.prepare import prepare as prepare_data
from fedshift.data.sources.discover import is_found

app = typer.Typer(
    name="data", help="Datasets: list, prepare, add your own, inspect.", no_args_is_help=True
)


SHOWN = 20  # lines of a report on the screen


Name = Annotated[str, typer.Argument(help="A dataset; see `fedshift data list`.")]


Size = Annotated[int | None, typer.Option(help="Pixels of a side; default: as stored.", min=1)]


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An option of the dataset; repeatable."),
]


@app.command(name="list")
def list_(as_json: opt.Json = False) -> None:
    """List datasets, whether they are prepared, where they come from, their licence."""
    rows = [_row(card) for card in (*CARDS.values(), *own_cards().values())]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_catalogue(rows)


def _row(card: Card) -> dict[str, Any]:
    have = prepared(card)
    state = f"prepared ({', '.join(have)})" if have else "not prepared"
    if not have and is_found(card, recipe_of(card, {})):
        state = "source found"
    hint = "hub " + ", ".join(h.id for h in card.hub) if card.hub else card.where or card.origin
    return {
        "name": card.name,
        "domains": ", ".join(card.domains[:7]) + (", ..." if len(card.domains) > 7 else "")
        or "one per site",
        "classes": card.classes,
        "state": state,
        "source": hint,
        "licence": card.licence,
    }


@app.command()
def prepare(
    name: Name,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Folder or file of the source, hub, or hub:ID."),
    ] = None,
    size: Size = None,
    settings: Settings = None,
) -> None:
    """Read a dataset's source once and keep it ready to be memory-mapped."""
    card = card_of(name)
    recipe = _recipe(card, size, settings)
    _tell(card, recipe, prepare_data(card, recipe, source=source))


def _recipe(card: Card, size: int | None, settings: list[str] | None) -> Recipe:
    options: dict[str, Any] = dict(parse_settings(settings or []))
    return recipe_of(card, options | ({} if size is None else {"size": size}))


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What to call it from now on.")],
    path: Annotated[
        Path, typer.Argument(help="domain/class/*.jpg, or a csv, parquet or npz of vectors.")
    ],
    size: Size = None,
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    domain: Annotated[str, typer.Option(help="Column of the domain.")] = "domain",
) -> None:
    """Make a dataset of your own images or vectors."""
    card, report = add_own(name, path, size=size, columns=(label, domain))
    _tell(card, Recipe(size), report)


def _tell(card: Card, recipe: Recipe, report: Report) -> None:
    """Where it is on standard output; what was left out on the error stream."""
    for kind, mark in (("left_out", "left out"), ("notes", "note")):
        for line in report[kind][:SHOWN]:
            typer.echo(f"{mark}: {line}", err=True)
        if len(report[kind]) > SHOWN:
            rest = f"{len(report[kind]) - SHOWN} more; `fedshift data inspect {card.name} --json`"
            typer.echo(f"{mark}: {rest}", err=True)
    typer.echo(f"prepared: {store_of(card, recipe)}")


@app.command()
def inspect(
    name: Name,
    size: Size = None,
    settings: Settings = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare all checksums.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for a contact sheet and a page.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Count classes per domain, find duplicates, show what was left out."""
    card = card_of(name)
    found = inspection.inspect(name, _folder(card, _recipe(card, size, settings)), verify=verify)
    if as_json:
        typer.echo(json.dumps(found.summary()))
    else:
        console = Console(soft_wrap=True)
        console.print(inspection.table(found))
        _lines(found)
    for path in inspection.write_pages(found, out) if out else []:
        typer.echo(f"written: {path}", err=as_json)


def _folder(card: Card, recipe: Recipe) -> Path:
    """Of the recipe, or the only one there is."""
    folder, have = store_of(card, recipe), prepared(card)
    if recipe.key in have:
        return folder
    if len(have) == 1 and recipe == recipe_of(card, {}):
        return folder.with_name(have[0])
    state = f"prepared as {', '.join(have)}" if have else "not prepared"
    raise DataError(
        f"dataset {card.name!r} is {state}, not as {recipe.key}; give --size or --set, or run "
        f"`fedshift data prepare {card.name}`"
    )


def _lines(found: inspection.Inspection) -> None:
    for place, count in found.duplicates.items():
        typer.echo(f"duplicates: {count} {place}")
    if not found.duplicates:
        typer.echo("duplicates: none")
    for line in found.report["left_out"]:
        typer.echo(f"left out: {line}")
    for line in found.report["notes"]:
        typer.echo(f"note: {line}")
    if found.verified:
        typer.echo("checksums: all match")
