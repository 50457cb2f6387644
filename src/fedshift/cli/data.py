"""``fedshift data``: what datasets there are, preparing them, adding your own, looking inside.

Here are the commands' options; what they do is in ``cli.datasets``, imported when one runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedshift.cli import options as opt

app = typer.Typer(
    name="data",
    help="Datasets: list, prepare, add your own, inspect, remove.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help="A dataset; see `fedshift data list`.")]
Size = Annotated[int | None, typer.Option(help="Pixels of a side; default: as stored.", min=1)]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An option of the dataset; repeatable."),
]
MaxGb = Annotated[
    float, typer.Option(help="Gigabytes that the decoded images may take.", min=0.001)
]
MaxMegapixels = Annotated[
    float, typer.Option(help="Million pixels that one image file may have.", min=0.001)
]


@app.command(name="list")
def list_(as_json: opt.Json = False) -> None:
    """List datasets, whether they are prepared, where they come from, their licence."""
    from fedshift.cli import datasets

    datasets.show_all(as_json=as_json)


@app.command()
def prepare(
    name: Name,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Folder or file of the source, hub, or hub:ID."),
    ] = None,
    size: Size = None,
    settings: Options = None,
    max_gb: MaxGb = 8,
    max_megapixels: MaxMegapixels = 64,
) -> None:
    """Read a dataset's source once and keep it ready to be memory-mapped."""
    from fedshift.cli import datasets

    datasets.prepare_named(name, source, size, settings, limits=(max_gb, max_megapixels))


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What to call it from now on.")],
    path: Annotated[
        Path,
        typer.Argument(
            help="domain/class/*.jpg, a csv that lists images, or a csv, parquet or npz of vectors."
        ),
    ],
    size: Size = None,
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    domain: Annotated[str, typer.Option(help="Column of the domain.")] = "domain",
    images: Annotated[
        Path | None,
        typer.Option(help="Folder that the paths in a csv start from; default: the csv's."),
    ] = None,
    max_gb: MaxGb = 8,
    max_megapixels: MaxMegapixels = 64,
) -> None:
    """Make a dataset of your own images or vectors."""
    from fedshift.cli import datasets

    limits = (max_gb, max_megapixels)
    datasets.add_own(name, path, size, columns=(label, domain), images=images, limits=limits)


@app.command()
def remove(
    name: Name,
    size: Annotated[int | None, typer.Option(help="Only the variant of this size.", min=1)] = None,
) -> None:
    """Delete what is prepared of a dataset; your own is then unknown. Sources stay."""
    from fedshift.cli import datasets

    datasets.remove_named(name, size)


@app.command()
def inspect(
    name: Name,
    size: Size = None,
    settings: Options = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare all checksums.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for a contact sheet and a page.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Count classes per domain, find duplicates and near-duplicates, show what was left out."""
    from fedshift.cli import datasets

    found = datasets.looked_at(name, size, settings, verify=verify)
    datasets.show(found, out, as_json=as_json)
