"""What ``fedshift show`` prints: the card of a method, or the numbers of runs.

A folder with runs in it is shown as such, whatever its name; any other word is a method or a part.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.base.errors import ConfigError, RunError, UnknownNameError
from fedshift.cli import options as opt

Row = dict[str, Any]
WIDEST = 100  # columns of a paragraph


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="METHOD|PATH",
            help="A method or a part; or a run directory, or a folder of them.",
            autocompletion=opt.names("methods"),
        ),
    ],
    scenario: Annotated[
        str | None,
        typer.Option(
            help="METHOD: where its bytes are counted; default digits.",
            autocompletion=opt.names("scenarios"),
        ),
    ] = None,
    backbone: opt.Backbone = None,
    against: opt.Against = None,
    as_json: opt.Json = False,
) -> None:
    """Show what a method is, needs and sends, or the numbers of a run or a folder of runs."""
    path = Path(what)
    if holds_runs(path):
        if scenario or backbone:
            raise ConfigError(f"{what} holds runs; --scenario and --backbone are for methods")
        show_runs(path, against, as_json=as_json)
    else:
        require_path(what)
        show_method(what, scenario or "digits", backbone, as_json=as_json)


def holds_runs(path: Path) -> bool:
    """Whether a path is a run directory, or a folder of them."""
    return (path / "config.json").exists() or any(path.glob("*/config.json"))


def require_path(what: str) -> None:
    """Raise for words that can only be a path, where there is no run: a folder, or with a slash."""
    path = Path(what)
    if path.exists() and what not in _known():
        raise RunError(f"{what} holds no run, and no method is called that; check the name")
    if "/" in what or "\\" in what:
        raise RunError(f"{what} is not a folder with runs, and no method is called that")


def _known() -> list[str]:
    from fedshift.cli.catalogue import catalogue

    names = (str(row["name"]) for kind in ("methods", "parts") for row in catalogue(kind))
    return list(dict.fromkeys(names))


def show_runs(path: Path, against: str | None, *, as_json: bool) -> None:
    """The numbers of a run, or the table of a folder of runs."""
    from rich.console import Console

    from fedshift.report import screen
    from fedshift.report.load import load_comparison, load_run

    single = (path / "config.json").exists()
    found: Any = load_run(path) if single else load_comparison(path)
    if as_json:
        typer.echo(json.dumps(found.summary if single else [r.summary for r in found.results]))
    else:
        Console().print(screen.detail(found) if single else screen.console(found, against))


def show_method(name: str, scenario: str, backbone: str | None, *, as_json: bool) -> None:
    """The card of a method or a part."""
    known = _known()
    if name not in known:  # at once: nothing has imported torch yet
        raise UnknownNameError.of("method, part or run", name, known)
    from fedshift.about.card import card, entry_of, measured
    from fedshift.about.stacks import Unit, refused_with, units
    from fedshift.experiment.scenario import scenario_from

    entry = entry_of(name)
    place = scenario_from(scenario, None, None, {"backbone": backbone} if backbone else {})
    shown = card(entry) | {"traffic": measured(entry, place)}
    all_units = units()
    shown["refused"] = refused_with(Unit(name, entry.group, entry.build()), all_units)
    shown["stacks_with"] = len(all_units) - len(shown["refused"])
    if as_json:
        typer.echo(json.dumps(shown))
    else:
        print_card(shown)


def print_card(shown: Row) -> None:
    """The card as sections of text, as wide as the terminal."""
    width = min(WIDEST, shutil.get_terminal_size().columns if sys.stdout.isatty() else 80)
    head = ", ".join(filter(None, (shown["group"], shown["paper"])))
    typer.echo(f"{shown['name']} ({head})" if head else shown["name"])
    _print("", [shown["summary"], shown["idea"]], width)
    _print("Use it", [shown["use"]], width)
    _print("Not for", [shown["not_for"]], width)
    _print("Parts", [f"{p['name']} ({p['kind']}): {p['what']}" for p in shown["parts"]], width)
    _print("Equations", [_equation(e) for e in shown["equations"]], width)
    _print("Settings", [_setting(s) for s in shown["settings"]], width)
    _print("Needs", shown["needs"], width)
    weights = "" if shown["traffic"].get("totals") == [0, 0] else "weights"
    _print("Leaves a site", [weights, *shown["leaves"]] if weights else ["nothing"], width)
    _print("Bytes per client and round", _bytes(shown["traffic"]), width)
    _print("Stacks", _stacks(shown), width)


def _print(title: str, lines: list[str], width: int) -> None:
    """A heading and its paragraphs; nothing if there are none."""
    lines = [line for line in lines if line]
    if not lines:
        return
    typer.echo(f"\n{title}" if title else "")
    indent = "  " if title else ""
    for line in lines:
        wrapped = textwrap.wrap(
            line,
            width,
            initial_indent=indent,
            subsequent_indent=indent * 2,
            break_long_words=False,
            break_on_hyphens=False,
        )
        typer.echo("\n".join(wrapped))


def _equation(found: Row) -> str:
    names = [
        f"{name} ({where.partition(':')[0].removeprefix('fedshift.')})"
        for name, where in found["functions"].items()
    ]
    return f"{found['where']}: {', '.join(names)}"


def _setting(found: Row) -> str:
    default = str(found["default"]).lower() if isinstance(found["default"], bool) else None
    return f"{found['key']}={default or found['default']}  {found['meaning']}; {found['range']}"


def _bytes(found: Row) -> list[str]:
    from fedshift.about.card import human, times

    place = f"{found['backbone']} on {found['scenario']}"
    if "problem" in found:
        return [f"not counted for {place}: {found['problem']}"]
    lines = []
    for i, way in enumerate(("up", "down")):
        kinds = ", ".join(f"{kind} {human(size)}" for kind, size in found[way].items())
        total, plain = found["totals"][i], found["fedavg"][i]
        more = f" ({kinds})" if kinds else ""
        lines.append(f"{way}: {human(total)}, {times(total, plain)} FedAvg's{more}")
    if found["later"]:
        lines.append(f"not counted: what {', '.join(found['later'])} may send down after round 1")
    return [*lines, f"counted for {place}, payload at its largest"]


def _stacks(shown: Row) -> list[str]:
    from fedshift.about.card import grouped

    told = [f"with {shown['stacks_with']} parts and rules; `fedshift list parts` names the parts"]
    refused = grouped(shown["refused"].items())
    return told + [f"not with {', '.join(names)}: {reason}" for reason, names in refused]
