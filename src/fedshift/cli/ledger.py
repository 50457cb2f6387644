"""``fedshift ledger``: what left each site, by round."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedshift.cli import options as opt


def ledger(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    as_json: opt.Json = False,
) -> None:
    """Show what left each site in each round: kinds, bytes, and what the parts declare it to be."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedshift.runs.what_left import require_declared, what_left

    left = what_left(path)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in left]))
    else:
        table = Table("round", "site", "task", "kind", box=None, pad_edge=False)
        table.add_column("bytes", justify="right")
        table.add_column("what it is", overflow="fold")
        for one in left:
            row = (str(one.round), one.client, one.task, one.kind, str(one.bytes))
            table.add_row(*(Text(plain(cell)) for cell in (*row, one.declared or "not declared")))
        Console(width=None if Console().is_terminal else 160).print(table)
        total = sum(one.bytes for one in left)
        typer.echo(f"{total} bytes left {len({one.client for one in left})} sites")
    require_declared(left)


def plain(text: str) -> str:
    """Text without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
