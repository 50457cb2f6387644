"""``fedshift adapt``: a trained model at a new site, without labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedshift.cli import options as opt


def adapt(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or a model adapted before.")
    ],
    site: Annotated[
        Path,
        typer.Option(help="The site's data: a folder of images; a csv, parquet, xlsx or npz file."),
    ],
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="own (of the run's method), adapt-bn, tent, t3a, shot; default: own, if there is "
            "one, else adapt-bn.",
        ),
    ] = None,
    name: opt.SiteName = None,
    start: opt.StartSite = None,
    out: opt.ModelOut = None,
    force: Annotated[
        bool, typer.Option("--force", help="Keep the model although its predictions collapse.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Adapt a trained model to a new site without labels; warn where that may have hurt it."""
    from fedshift.adapting.adapt import adapt as adapt_to
    from fedshift.adapting.site_data import name_of
    from fedshift.base.process import tune_process

    tune_process()
    known = name or name_of(site)
    path = out or Path("models") / known
    found = adapt_to(run, site, with_=with_, site=known, start=start, out=path, force=force)
    typer.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))
