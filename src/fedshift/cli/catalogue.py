"""What there is to choose from: one line each, with paper and switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from fedshift.base.registry import Entry
from fedshift.core.component import settings_of
from fedshift.core.registry import BACKBONES, METHODS, SCENARIOS, parts
from fedshift.core.scenario import Scenario
from fedshift.data.library.loaded import datasets
from fedshift.data.registry import DATASETS

Row = dict[str, Any]


def catalogue(kind: str) -> list[Row]:
    """Rows of one kind as JSON."""
    makers: dict[str, Callable[[], list[Row]]] = {
        "methods": _methods,
        "parts": _parts,
        "scenarios": _scenarios,
        "backbones": lambda: [_plain(e) for e in BACKBONES.entries().values()],
        "datasets": lambda: [_plain(DATASETS.get(name)) for name in datasets()],
    }
    return makers[kind]()


def print_catalogue(rows: list[Row]) -> None:
    """One line each, columns aligned; a terminal may wrap it, a pipe gets it whole."""
    lines = [[_text(value) for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo(text.rstrip())


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def _switches(entry: Entry[Any], skip: tuple[str, ...] = ()) -> Row:
    return {k: p.default for k, p in entry.options.items() if k not in skip}


def _plain(entry: Entry[Any]) -> Row:
    options = _switches(entry, ("shape", "classes"))
    return {"name": entry.name, "what": entry.summary, "switches": options}


def _methods() -> list[Row]:
    rows = []
    for entry in METHODS.entries().values():
        whole = entry.build()
        own = {p.name for p in whole.parts}  # a part's setting needs no owner's name before it
        settings = {k if o in own else f"{o}.{k}": v for o, k, v in whole.settings()}
        rows.append(
            {
                "name": entry.name,
                "what": entry.summary,
                "paper": entry.paper,
                "switches": settings | _switches(entry),
            }
        )
    return rows


def _parts() -> list[Row]:
    rows = []
    for name, kind in sorted(parts().items()):
        settings = {f.name: f.default for f in settings_of(kind())}
        what = (kind.__doc__ or "").strip().split("\n")[0]
        rows.append({"name": name, "what": what, "switches": settings})
    return rows


def _scenarios() -> list[Row]:
    rows = []
    for entry in SCENARIOS.entries().values():
        place: Scenario = entry.build()
        rows.append(
            {
                "name": entry.name,
                "what": entry.summary,
                "domains": list(place.domains),
                "unseen": place.unseen or "none",
                "protocols": list(place.protocols),
            }
        )
    return rows
