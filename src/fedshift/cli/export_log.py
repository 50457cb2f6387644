"""``fedshift export-log``: runs that have been played, for TensorBoard or MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedshift.base.errors import RunError


def export_log(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Run directories, or folders of them.")
    ],
    to: Annotated[Literal["tensorboard", "mlflow"], typer.Option(help="The tracker.")],
    out: Annotated[
        Path, typer.Option(help="Folder of its files; MLFLOW_TRACKING_URI names a server instead.")
    ] = Path("logs"),
) -> None:
    """Log runs that have been played to TensorBoard or MLflow; `run --log` does it live."""
    from fedshift.experiment.trackers import export

    found = [run for path in paths for run in runs_in(path)]
    for path, new in export(found, to, out):
        typer.echo(f"{'logged' if new else 'there already'}: {path}")


def runs_in(path: Path) -> list[Path]:
    """A run directory, or those in a folder."""
    if (path / "config.json").exists():
        return [path]
    found = sorted(file.parent for file in path.glob("*/config.json"))
    if not found:
        raise RunError(f"{path} holds no run; check the path")
    return found
