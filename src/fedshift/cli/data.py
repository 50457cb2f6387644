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
Columns = Annotated[str | None, typer.Option(metavar="COLUMNS", help="Columns with this role.")]
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
        typer.Argument(help="Folders of images, a csv that lists them, csv, parquet, xlsx or npz."),
    ],
    size: Size = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the label; several, with commas: multi-label.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option("--domain", "--site", help="Column that names the site.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="classification, regression or multi-label.")
    ] = None,
    rename_label: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="A label that a site writes its own way; repeatable."),
    ] = None,
    drop: Columns = None,
    numeric: Columns = None,
    categorical: Columns = None,
    date: Columns = None,
    text: Columns = None,
    missing: Annotated[
        list[str] | None, typer.Option(help="A further cell that means missing; repeatable.")
    ] = None,
    impute: Annotated[
        str | None, typer.Option(help="Missing numbers: median, mean, or drop the row.")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="Numbers: standard, or none.")] = None,
    statistics: Annotated[
        str | None, typer.Option(help="federated: summed over sites; or each site's own.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Noise on federated statistics; smaller is more.")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=LOW:HIGH", help="Of numbers, under --epsilon; repeatable."),
    ] = None,
    categories: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=A:B", help="Of a column, under --epsilon; repeatable."),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Of texts: words, minilm, or a local folder.")
    ] = None,
    may_drop: Annotated[
        float | None, typer.Option(help="Share of a site's rows that may be left out.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="TOML file with any of these, and more.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Folder that the paths in a csv start from; default: the csv's."),
    ] = None,
    max_gb: MaxGb = 8,
    max_megapixels: MaxMegapixels = 64,
) -> None:
    """Make a dataset of your own images, tables or texts."""
    from fedshift.cli import datasets

    told = {
        "label": label, "domain": domain, "objective": objective, "drop": drop,
        "numeric": numeric, "categorical": categorical, "date": date, "text": text,
        "missing": missing, "impute": impute, "scale": scale, "statistics": statistics,
        "epsilon": epsilon, "bounds": bounds, "categories": categories,
        "encoder": encoder, "may_drop": may_drop, "rename_label": rename_label,
    }  # fmt: skip
    given = {key: value for key, value in told.items() if value is not None}
    limits = (max_gb, max_megapixels)
    datasets.add_own(name, path, size, given, schema, images=images, limits=limits)


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
