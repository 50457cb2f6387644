"""``fedshift report``: finished runs as a page, or as tables for papers and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedshift.cli import options as opt

Form = Literal["html", "md", "markdown", "latex", "csv", "json"]


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Run directories, or folders of them.")
    ],
    form: Annotated[Form, typer.Option("--format", help="What to make; markdown is md.")] = "html",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; html has a default.")
    ] = None,
    against: opt.Against = None,
    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed",
            help="One table for runs of one scenario that differ in scale, protocol or settings; "
            "each row says in what.",
        ),
    ] = False,
    figure: Annotated[
        list[Path] | None,
        typer.Option(help="A picture to show at the end of the page, such as t-SNE; repeatable."),
    ] = None,
) -> None:
    """Make one page of finished runs, or their table in Markdown, LaTeX, CSV or JSON."""
    from fedshift.report import formats, html
    from fedshift.report.load import load_all
    from fedshift.report.mixed import mixed as as_one
    from fedshift.report.pictures import picture_of, pictures_in

    found = load_all(paths)
    found = as_one(found) if mixed else found
    if form == "html":
        folder = len(paths) == 1 and not (paths[0] / "config.json").exists()
        page = out or (paths[0] if folder else Path()) / "report.html"
        pictures = [*pictures_in(paths), *map(picture_of, figure or ())]
        typer.echo(f"report: {html.write(found, page, against, pictures)}")
        return
    made = {"latex": formats.latex, "csv": formats.csv, "json": formats.json}
    text = made.get(form, formats.markdown)(found, against)
    if out is None:
        typer.echo(text)
    else:
        formats.write(text, out)
        typer.echo(f"written: {out}")
