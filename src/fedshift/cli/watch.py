"""``fedshift watch``: runs as they go, without touching them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedshift.cli import options as opt


def watch(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS...", help="Run directories, or folders of them."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame and end; so it is without a terminal.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    web: Annotated[
        bool, typer.Option("--web", help="A page on this machine instead, for a browser.")
    ] = False,
    port: Annotated[int, typer.Option(help="Of --web; 0 is a free one.", min=0, max=65535)] = 0,
    as_json: opt.Json = False,
) -> None:
    """Show runs as they go: rounds, time left, loss terms, scores by domain, slow or lost sites."""
    if web:
        _serve(paths or [Path("runs")], port, every)
        return
    from rich.console import Console

    from fedshift.report.watch_screen import frame
    from fedshift.report.watching import Watchlist

    found = Watchlist(paths or [Path("runs")])
    console = Console()
    if as_json:
        typer.echo(json.dumps([run.to_json() for run in found.refresh()]))
    elif once or not console.is_terminal:
        console.print(frame(found.refresh()))
    else:
        from rich.live import Live

        # Drawn after each look and not by a thread of its own: a view costs next to nothing.
        with Live(frame(found.refresh()), console=console, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(every)
                    live.update(frame(found.refresh()), refresh=True)
            except KeyboardInterrupt:
                pass


def _serve(paths: list[Path], port: int, every: float) -> None:
    """Serve the page until somebody presses Ctrl-C."""
    from fedshift.report.web import LiveView

    with LiveView(paths, port, max(every, 2.0)) as view:
        typer.echo(f"runs as they go: {view.address} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            view.serve_forever()
