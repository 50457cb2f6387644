"""What there is to choose from: one line each, with paper and switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from fedshift.registry import BACKBONES, DATASETS, METHODS, SCENARIOS, Entry, parts
from fedshift.scenario import Scenario

Row = dict[str, Any]


def catalogue(kind: str) -> list[Row]:
    """Rows of one kind as JSON."""
    makers: dict[str, Callable[[], list[Row]]] = {
        "methods": _methods,
        "parts": _parts,
        "scenarios": _scenarios,
        "backbones": lambda: [_plain(e) for e in BACKBONES.entries().values()],
        "datasets": lambda: [_plain(e) for e in DATASETS.entries().values()],
    }
    return makers[kind]()


def print_catalogue(kind: str, rows: list[Row]) -> None:
    """A table on the screen."""
    table = Table(title=f"{len(rows)} {kind}", box=None, title_justify="left", pad_edge=False)
    for key in rows[0]:
        table.add_column(key, overflow="fold", no_wrap=key == "name")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    Console().print(table)


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
        settings = {key: value for _, key, value in entry.build().settings()}
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
        settings = {f.name: f.default for f in getattr(kind, "__dataclass_fields__", {}).values()}
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
