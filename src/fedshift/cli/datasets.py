"""What the commands of ``fedshift data`` do: prepared stores, their cards and their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fedshift.base.errors import DataError
from fedshift.base.settings import parse_settings
from fedshift.cli.catalogue import print_catalogue
from fedshift.data.catalogue import CATALOGUE, DatasetCard, Variant
from fedshift.data.library import inspection
from fedshift.data.library.datasets import add, card_of, own_cards, remove, variant_of
from fedshift.data.library.near import NearDuplicates
from fedshift.data.library.prepare import Report, prepare, prepared, store_of
from fedshift.data.sources.discover import is_found
from fedshift.data.sources.limits import Limits
from fedshift.data.sources.tables.schema import schema_of

SHOWN = 20  # lines of a report on the screen


def show_all(*, as_json: bool) -> None:
    """Every dataset in a line."""
    rows = [_row(card) for card in (*CATALOGUE.values(), *own_cards().values())]
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_catalogue(rows)


def _row(card: DatasetCard) -> dict[str, Any]:
    have = prepared(card)
    state = f"prepared ({', '.join(have)})" if have else "not prepared"
    if not have and is_found(card, variant_of(card, {})):
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


def prepare_named(
    name: str,
    source: str | None,
    size: int | None,
    settings: list[str] | None,
    *,
    limits: tuple[float, float],
) -> None:
    """Prepare a dataset, and say what was left out."""
    card = card_of(name)
    variant = _variant(card, size, settings)
    _tell(card, variant, prepare(card, variant, source=source, limits=Limits(*limits)))


def _variant(card: DatasetCard, size: int | None, settings: list[str] | None) -> Variant:
    options: dict[str, Any] = dict(parse_settings(settings or []))
    return variant_of(card, options | ({} if size is None else {"size": size}))


def add_own(
    name: str,
    path: Path,
    size: int | None,
    given: dict[str, Any],
    schema: Path | None,
    *,
    images: Path | None,
    limits: tuple[float, float],
) -> None:
    """Make a dataset of one's own, and say what was left out; ``given``: what is said of tables."""
    pairs = [pair.partition("=") for pair in given.pop("rename_label", [])]
    if pairs:
        given["rename_label"] = {old.strip(): new.strip() for old, _, new in pairs}
    told = schema_of(given, schema)
    table = told.model_dump(mode="json", exclude_unset=True)
    columns = (",".join(told.label), told.domain)
    card, report = add(
        name, path, size=size, columns=columns, table=table, images=images, limits=Limits(*limits)
    )
    _tell(card, Variant(size), report)


def remove_named(name: str, size: int | None) -> None:
    """Delete what is prepared of a dataset, and its card if it is one's own."""
    for path in remove(name, size):
        typer.echo(f"removed: {path}")


def _tell(card: DatasetCard, variant: Variant, report: Report) -> None:
    """Where it is on standard output; what was left out on the error stream."""
    for kind, mark in (("left_out", "left out"), ("notes", "note")):
        for line in report[kind][:SHOWN]:
            typer.echo(f"{mark}: {line}", err=True)
        if len(report[kind]) > SHOWN:
            rest = f"{len(report[kind]) - SHOWN} more; `fedshift data inspect {card.name} --json`"
            typer.echo(f"{mark}: {rest}", err=True)
    typer.echo(f"prepared: {store_of(card, variant)}")


def looked_at(
    name: str, size: int | None, settings: list[str] | None, *, verify: bool
) -> inspection.Inspection:
    """What is in a prepared dataset."""
    card = card_of(name)
    return inspection.inspect(name, _folder(card, _variant(card, size, settings)), verify=verify)


def show(found: inspection.Inspection, out: Path | None, *, as_json: bool) -> None:
    """Print it, and write its pages if a folder is given for them."""
    if as_json:
        typer.echo(json.dumps(found.summary()))
    else:
        Console(soft_wrap=True).print(inspection.table(found))
        _lines(found)
    for path in inspection.write_pages(found, out) if out else []:
        typer.echo(f"written: {path}", err=as_json)


def _folder(card: DatasetCard, variant: Variant) -> Path:
    """Of the recipe, or the only one there is."""
    folder, have = store_of(card, variant), prepared(card)
    if variant.key in have:
        return folder
    if len(have) == 1 and variant == variant_of(card, {}):
        return folder.with_name(have[0])
    state = f"prepared as {', '.join(have)}" if have else "not prepared"
    raise DataError(
        f"dataset {card.name!r} is {state}, not as {variant.key}; give --size or --set, or run "
        f"`fedshift data prepare {card.name}`"
    )


def _near(near: NearDuplicates) -> None:
    for where, count in near.counts.items():
        typer.echo(f"near-duplicates: {count} {where}")
    for one, other in near.pairs:
        typer.echo(f"near-duplicate: {one} and {other}")
    if near.skipped:
        typer.echo(f"near-duplicates: {near.skipped} images look too much alike to be compared")


def _lines(found: inspection.Inspection) -> None:
    for line in inspection.column_lines(found):
        typer.echo(line)
    for where, count in found.duplicates.items():
        typer.echo(f"duplicates: {count} {where}")
    if not found.duplicates:
        typer.echo("duplicates: none")
    _near(found.near)
    for line in found.report["left_out"]:
        typer.echo(f"left out: {line}")
    for line in found.report["notes"]:
        typer.echo(f"note: {line}")
    if found.verified:
        typer.echo("checksums: all match")
