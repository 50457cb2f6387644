"""``fedshift predict``: what a run's model says of raw rows or images."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedshift.cli import options as opt


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    data: Annotated[
        Path, typer.Argument(help="A csv, parquet or xlsx file; an image or a folder of images.")
    ],
    site: Annotated[
        str | None, typer.Option(help="Whose model and data; default: the model for all.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Rows of a new site, where each site has statistics of its own."),
    ] = None,
    ids: Annotated[
        str | None, typer.Option("--id", help="Column of a table that names its rows.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A csv file; default: the screen.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Predict raw data: class, probabilities and out-of-distribution score of each row or image."""
    from fedshift.experiment.models import load_model, sites_of

    known = site is not None and site in sites_of(run)
    model = load_model(run, site if known else None)
    found = model.predict(data, site, reference=reference, ids=ids).columns()
    if as_json:
        typer.echo(json.dumps(found))
        return
    rows = [list(found), *zip(*found.values(), strict=True)]
    if out is None:
        csv.writer(sys.stdout).writerows(rows)
        return
    with out.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    typer.echo(f"{len(rows) - 1} predictions of round {model.round} in {out}")
