"""What there is to choose from: one line each, with paper and switches.

Finding out imports every method, and torch with them. So the answer is kept in FEDSHIFT_HOME, with
a digest of everything it was made from (our files, plug-ins, other packages, your own datasets):
``fedshift list`` answers at once, and never with what was true before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer

from fedshift.base.errors import RunError
from fedshift.base.files import home, write_json

Row = dict[str, Any]
ORDER = (  # headings of methods; others come after them
    "reference",
    "optimisation",
    "label skew",
    "personal",
    "prototypes",
    "alignment",
    "augmentation",
    "aggregation",
    "privacy",
    "compression",
    "adaptation",
)
WIDTH = 80  # of lines that go into a pipe
COLUMN = 10  # for names; a longer one moves its own line only
GROUPS = (
    "fedshift.methods",
    "fedshift.backbones",
    "fedshift.scenarios",
    "fedshift.data",
    "fedshift.run_analyses",
)


def catalogue(kind: str) -> list[Row]:
    """Rows of one kind as JSON: kept ones, if nothing they rest on has changed."""
    digest = fingerprint()
    path = home() / "catalogue" / f"{kind}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        if kept["digest"] == digest:
            found: list[Row] = kept["rows"]
            return found
    rows: list[Row] = json.loads(json.dumps(list_all(kind)))
    _keep(path, {"digest": digest, "rows": rows})
    return rows


def _keep(path: Path, content: Row) -> None:
    """Write what was found; a folder that cannot be written is looked through again next time."""
    with suppress(RunError):
        write_json(path, content)


def fingerprint() -> str:
    """A digest of all that a catalogue is made from, without importing any of it."""
    found = hashlib.blake2b(digest_size=16)
    found.update(os.environ.get("FEDSHIFT_PLUGINS", "").encode())  # also what does not exist
    for path in sorted(_sources()):
        with suppress(OSError):
            stat = path.stat()
            found.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    for group in GROUPS:
        for point in entry_points(group=group):
            version = point.dist.version if point.dist else ""
            found.update(f"{group} {point.name} {point.value} {version}\n".encode())
    return found.hexdigest()


def _sources() -> Iterator[Path]:
    """Our files, those of FEDSHIFT_PLUGINS, and the cards of your own datasets."""
    yield from Path(__file__).parent.parent.rglob("*.py")
    for item in filter(None, os.environ.get("FEDSHIFT_PLUGINS", "").split(os.pathsep)):
        path = Path(item)
        yield from [path, *path.glob("*.py")] if path.is_dir() else [path]
    yield from (home() / "own").glob("*.json")


def list_all(kind: str) -> list[Row]:
    """Rows of one kind, by looking at everything that is registered."""
    from fedshift.core.registry import BACKBONES
    from fedshift.data.library.loaded import datasets
    from fedshift.data.registry import DATASETS

    makers: dict[str, Callable[[], list[Row]]] = {
        "methods": _methods,
        "parts": _parts,
        "scenarios": _scenarios,
        "backbones": lambda: [_plain(e) for e in BACKBONES.entries().values()],
        "datasets": lambda: [_plain(DATASETS.get(name)) for name in datasets()],
        "analyses": _analyses,
    }
    return makers[kind]()


def print_catalogue(rows: list[Row]) -> None:
    """One line each, columns aligned, for pipes; on a terminal a paragraph each, as wide as it."""
    lines = [[_text(value) for value in row.values()] for row in rows]
    if sys.stdout.isatty():
        for line in lines:
            typer.echo(paragraph(line, shutil.get_terminal_size().columns))
        return
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo(text.rstrip())


def by_group(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows under their headings: known ones in a fixed order, then others, then those of none."""
    known = dict.fromkeys((*ORDER, *sorted(row["group"] for row in rows if row["group"]), ""))
    found = {group: [row for row in rows if row["group"] == group] for group in known}
    return {group or "other": own for group, own in found.items() if own}


def print_methods(rows: list[Row], *, verbose: bool = False) -> None:
    """Methods under headings, one line each; ``verbose`` adds paper and settings below each."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else WIDTH
    for i, (group, own) in enumerate(by_group(rows).items()):
        typer.echo(f"{chr(10) if i else ''}{group}:")
        column = min(COLUMN, max(len(row["name"]) for row in own))
        for row in own:
            typer.echo(_cut(f"  {row['name'].ljust(column)}  {row['what'].rstrip('.')}", width))
            if verbose:
                more = paragraph(["", row["paper"], _text(row["switches"])], width)
                typer.echo(more.lstrip("\n"), nl=bool(more.strip()))
    if terminal and not verbose:
        typer.echo("\n`fedshift show METHOD` tells more, --verbose adds papers and settings.")


def _cut(line: str, width: int) -> str:
    """A line that fits, cut between words if it has to be."""
    line = line.rstrip()
    return line if len(line) <= width else line[: width - 1].rpartition(" ")[0].rstrip() + "…"


def paragraph(line: list[str], width: int) -> str:
    """A name, and below it everything else, wrapped between words.

    >>> print(paragraph(["fedbn", "BatchNorm stays at the sites", "", "ICLR 2021"], 24))
    fedbn
        BatchNorm stays at
        the sites; ICLR 2021
    """
    rest = "; ".join(filter(None, line[1:]))
    wrapped = textwrap.wrap(
        rest,
        width,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([line[0], *wrapped])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def _switches(entry: Any, skip: tuple[str, ...] = ()) -> Row:
    return {k: p.default for k, p in entry.options.items() if k not in skip}


def _plain(entry: Any) -> Row:
    options = _switches(entry, ("shape", "classes"))
    return {"name": entry.name, "what": entry.summary, "switches": options}


def _methods() -> list[Row]:
    from fedshift.core.registry import METHODS

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
                "group": entry.group,
                "switches": settings | _switches(entry),
            }
        )
    return rows


def _analyses() -> list[Row]:
    from fedshift.analyse import ANALYSES, options_of

    rows = []
    for entry in ANALYSES.entries().values():
        options = {k: p.default for k, p in options_of(entry.name).items()}
        rows.append(
            {"name": entry.name, "what": entry.summary, "paper": entry.paper, "switches": options}
        )
    return rows


def _parts() -> list[Row]:
    from fedshift.core.component import settings_of
    from fedshift.core.registry import parts

    rows = []
    for name, kind in sorted(parts().items()):
        settings = {f.name: f.default for f in settings_of(kind())}
        what = (kind.__doc__ or "").strip().split("\n")[0]
        rows.append({"name": name, "what": what, "switches": settings})
    return rows


def _scenarios() -> list[Row]:
    from fedshift.core.registry import SCENARIOS

    rows = []
    for entry in SCENARIOS.entries().values():
        scenario = entry.build()
        rows.append(
            {
                "name": entry.name,
                "what": entry.summary,
                "domains": list(scenario.domains),
                "unseen": scenario.unseen or "none",
                "protocols": list(scenario.protocols),
            }
        )
    return rows
