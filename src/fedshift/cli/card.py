"""``fedshift card``: the model card of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .md, .json or .html file; default: the screen."),
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="Whose own model; default: the model of the run.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="temperature: what fitting one on the validation samples would do."),
    ] = None,
    licence: Annotated[str, typer.Option(help="Under which the model may be used.")] = "",
) -> None:
    """Write a run's model card: data, protocol, results, calibration, limits, what left a site."""
    from fedshift.serve.calibrate import require_kind, temperature_of_run
    from fedshift.serve.card import card_of
    from fedshift.serve.card_text import markdown, write_card

    require_kind(calibrate)
    warmth = temperature_of_run(run, site) if calibrate else None
    found = card_of(run, site=site, licence=licence, temperature=warmth)
    typer.echo(markdown(found) if out is None else str(write_card(found, out)))
