"""``fedshift doctor``: what is in the data, how sites differ, whether this machine will do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedshift.base.errors import ConfigError
from fedshift.cli import options as opt

PICTURES = (".png", ".svg", ".pdf")


def doctor(
    data: Annotated[
        str, typer.Argument(help="A dataset, a scenario, a run file, or a path to data.")
    ],
    size: Annotated[
        int | None, typer.Option(help="Pixels of a side; default: as stored.", min=1)
    ] = None,
    label: Annotated[str, typer.Option(help="Column of the label, of a table at a path.")] = "",
    site: Annotated[str, typer.Option(help="Column of the site, of a table at a path.")] = "",
    samples: Annotated[
        int, typer.Option(help="Training and test samples of a site that are looked at.", min=20)
    ] = 1000,
    skip_cost: Annotated[
        bool, typer.Option("--skip-cost", help="Do not time what a run would take.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Picture to write: png, svg or pdf.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Check data and machine, and explain in plain sentences how the sites differ."""
    from fedshift.report import optional

    if plot is not None:
        optional.figures()  # before minutes of work
        if plot.suffix.lower() not in PICTURES:
            known = ", ".join(PICTURES)
            raise ConfigError(f"{plot} ends in {plot.suffix!r}; a picture is one of {known}")
    from fedshift.base.process import tune_process
    from fedshift.guide.doctor import doctor as look

    tune_process()
    found = look(data, size=size, label=label, site=site, samples=samples, cost=not skip_cost)
    if as_json:
        typer.echo(json.dumps(found.summary()))
    else:
        from rich.console import Console

        from fedshift.guide.screen import shown

        for part in shown(found):
            Console().print(part)
    if plot is not None:
        typer.echo(f"written: {found.plot(plot)}", err=as_json)
