"""``fedshift finetune``: a trained model at a new site, with a few labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedshift.cli import options as opt


def finetune(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or a model adapted before.")
    ],
    site: Annotated[
        Path, typer.Option(help="The site's data with labels: class folders, a table, an npz file.")
    ],
    layers: Annotated[
        str, typer.Option(help="What trains: head, bn (and the head), or all.")
    ] = "head",
    epochs: Annotated[
        int, typer.Option(help="At most; it stops when held-out samples gain no more.", min=1)
    ] = 30,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; default: a tenth of the run's.")
    ] = None,
    name: opt.SiteName = None,
    start: opt.StartSite = None,
    out: opt.ModelOut = None,
    as_json: opt.Json = False,
) -> None:
    """Train a model further on a site's few labelled samples, and say what that gained."""
    from fedshift.adapting.finetune import finetune as train_on
    from fedshift.adapting.site_data import name_of
    from fedshift.base.process import tune_process

    tune_process()
    known = name or name_of(site)
    found = train_on(
        run,
        site,
        layers=layers,
        epochs=epochs,
        lr=lr,
        site=known,
        start=start,
        out=out or Path("models") / known,
    )
    typer.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))
