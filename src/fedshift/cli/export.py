"""``fedshift export``: a trained model as a file that runs without fedshift."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    kind: Annotated[
        str, typer.Option("--format", help="onnx, torch-export, safetensors or torchscript.")
    ] = "onnx",
    site: Annotated[
        str | None, typer.Option(help="Whose own model; default: the model for all.")
    ] = None,
    quantise: Annotated[
        str | None, typer.Option(help="int8: a second ONNX file with weights of 8 bits.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="temperature: probabilities fitted on the validation samples."),
    ] = None,
    licence: Annotated[str, typer.Option(help="For the card: under which it may be used.")] = "",
) -> None:
    """Write a trained model as a file that runs without fedshift, checked against the model."""
    from fedshift.serve.export import export as write

    done = write(run, out, kind, site=site, quantise=quantise, calibrate=calibrate, licence=licence)
    for line in done.lines():
        typer.echo(line)
