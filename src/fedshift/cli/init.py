"""``fedshift init``: a few questions, or their flags, and a run file to begin with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift.base.errors import ConfigError


def init(
    data: Annotated[
        str | None, typer.Argument(help="A dataset, a scenario, or a path to data to add.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            help="single (one model for all sites), per-site, unlabelled (a site without labels) "
            "or unseen (a site not seen yet); default single."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The site without labels, or the one that stands for unseen ones."),
    ] = None,
    privacy: Annotated[
        str | None, typer.Option(help="none (default), secure-aggregation or local-dp.")
    ] = None,
    mb_per_round: Annotated[
        float | None, typer.Option(help="Megabytes a round may move, up and down, all sites.")
    ] = None,
    mb: Annotated[float | None, typer.Option(help="Megabytes the whole run may move.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes that a run may take here, with one process.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call data at a path.")] = None,
    size: Annotated[
        int | None, typer.Option(help="Pixels of a side, of images at a path.", min=1)
    ] = None,
    label: Annotated[str, typer.Option(help="Column of the label, of a table at a path.")] = "",
    site: Annotated[str, typer.Option(help="Column of the site, of a table at a path.")] = "",
    out: Annotated[Path, typer.Option("--out", "-o", help="The run file to write.")] = Path(
        "experiment.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; take defaults for what is open.")
    ] = False,
) -> None:
    """Write a first run file: a question, its constraints, a method, and the reason for each."""
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; choose another file, or replace it", "out=FILE", "force")
    given: dict[str, Any] = {
        "question": question, "target": target, "privacy": privacy, "mb_per_round": mb_per_round,
        "mb": mb, "minutes": minutes,
    }  # fmt: skip
    asking = asks() and not yes
    if data is None and not asking:
        raise ConfigError(
            "no data are named; give a dataset, a scenario or a path: fedshift init X"
        )
    shown = data if data is not None else _ask("Your data (a dataset, or a path)")
    from fedshift.base.process import tune_process
    from fedshift.guide.first_run import first_run, named

    tune_process()
    known, notes = named(shown, name=name or "", size=size, label=label, site=site)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if asking:
        given = _asked(known, given)
    found = first_run(known, **{k: v for k, v in given.items() if v is not None})
    replace(found, notes=notes).write(out, force=force)
    typer.echo(f"method: {found.method.value}")
    typer.echo(f"written: {out}")
    typer.echo(f"next: fedshift run {out}")


def asks() -> bool:
    """Whether somebody sits at the terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(text: str, default: str | None = None) -> str:
    return str(typer.prompt(text, default=default, show_default=bool(default)))


def _asked(data: str, given: dict[str, Any]) -> dict[str, Any]:
    """What the options leave open, asked one by one; an empty answer takes the default."""
    from fedshift.experiment.scenario import find_scenario
    from fedshift.guide.rules import NEED_TARGET, PRIVACIES, QUESTIONS

    out = dict(given)
    out["question"] = given["question"] or _choose("What do you want to know?", QUESTIONS)
    if out["question"] in NEED_TARGET and given["target"] is None:
        scenario = find_scenario(data)
        sites = [*scenario.domains, *([scenario.unseen] if scenario.unseen else [])]
        typer.echo(f"Sites: {', '.join(sites)}")
        out["target"] = _ask("Which of them? (empty: the smallest)", "") or None
    out["privacy"] = given["privacy"] or _choose("Who may see what?", PRIVACIES)
    for key, text in (
        ("mb_per_round", "Megabytes that a round may move, up and down (empty: any)"),
        ("mb", "Megabytes that the whole run may move (empty: any)"),
        ("minutes", "Minutes that a run may take here (empty: any)"),
    ):
        if given[key] is None:
            out[key] = _number(text)
    return out


def _choose(text: str, choices: dict[str, str]) -> str:
    """One of the choices, by its number or its name; the first is the default."""
    names = list(choices)
    typer.echo(text)
    for number, (word, told) in enumerate(choices.items(), start=1):
        typer.echo(f"  {number}  {word:<20} {told}")
    while True:
        answer = _ask("Number or name", names[0]).strip()
        if answer in choices:
            return answer
        if answer.isdigit() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        typer.echo(f"{answer!r} is none of them")


def _number(text: str) -> float | None:
    while True:
        answer = _ask(text, "").strip()
        if not answer:
            return None
        try:
            return float(answer)
        except ValueError:
            typer.echo(f"{answer!r} is no number")
