"""A frame of ``fedshift watch``: runs as they go, in the terminal.

All numbers come from ``report.watching``; nothing is read or computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fedshift.base.logs import printable
from fedshift.base.times import duration
from fedshift.report.fitted import FittedTable
from fedshift.report.watching import Watched

BAR = 12  # characters
NONE = "\N{EN DASH}"
STYLES = {"running": "green", "killed": "bold red", "stopped": "yellow", "finished": "dim"}
Line = list[str | Text]


def frame(runs: Sequence[Watched]) -> RenderableType:
    """Everything at this moment: a line per run, its scores by domain, slow and lost sites."""
    if not runs:
        return Text("no run has begun there yet")
    runs = sorted(runs, key=lambda run: run.state == "finished")  # those that go on come first
    ended = sum(run.state == "finished" for run in runs)
    heads = ["run", "state", "round", "", "per round", "left", "losses"]
    lines = [_line(run) for run in runs]
    parts: list[RenderableType] = [
        FittedTable(f"{len(runs)} runs, {ended} finished", heads, lines),
        *_domains(runs),
        *(Text(text, style=style) for text, style in _notes(runs)),
    ]
    return Group(*parts)


def title_of(run: Watched) -> str:
    """Method, scenario and seed; the folder's name while nothing else is known."""
    known = f"{run.method} · {run.scenario} · seed {run.seed}" if run.total else run.name
    return printable(known)


def _line(run: Watched) -> Line:
    state = (
        Text("stalled", "bold red") if run.stalled else Text(run.state, STYLES.get(run.state, ""))
    )
    done = round(BAR * run.round / run.total) if run.total else 0
    bar = Text("━" * done, "green").append("━" * (BAR - done), "bright_black")
    each = NONE if run.each is None else _seconds(run.each)
    left = NONE if run.left is None else duration(run.left)
    losses = "  ".join(f"{printable(name)} {value:.3g}" for name, value in run.losses.items())
    return [title_of(run), state, f"{run.round}/{run.total}", bar, each, left, losses]


def _seconds(value: float) -> str:
    """A short time; milliseconds matter for small nets."""
    return f"{value:.2f} s" if value < 10 else duration(value)


def _domains(runs: Sequence[Watched]) -> Iterator[RenderableType]:
    """A table per protocol: test scores of each run's last scored round, by domain."""
    for protocol in dict.fromkeys(p for run in runs for p in run.scores):
        found = [(run, run.scores[protocol]) for run in runs if protocol in run.scores]
        names = list(dict.fromkeys(name for _, score in found for name in score["domains"]))
        lines: list[Line] = []
        for run, score in found:
            values = [*map(score["domains"].get, names), score["test"], score["val"]]
            lines.append([title_of(run), *map(_number, values)])
        heads = ["run", *map(printable, names), "AVG", "AVG, validation"]
        yield FittedTable(f"{protocol}, test, last scored round", heads, lines)


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _notes(runs: Sequence[Watched]) -> Iterator[tuple[str, str]]:
    """What needs somebody's eye: (text, style)."""
    for run in runs:
        title = title_of(run)
        for site, seconds in run.slow.items():
            whole = _seconds(run.rows[-1]["seconds"])
            yield (
                f"{title}: slow site {printable(site)}, {_seconds(seconds)} of a round of {whole}",
                "yellow",
            )
        for site in dict.fromkeys(loss.client for loss in run.lost):
            own = [loss for loss in run.lost if loss.client == site]
            last = own[-1]
            yield (
                f"{title}: lost {len(own)} times: {printable(site)}, at last in round {last.round} "
                f"({last.task}): {printable(last.reason)}",
                "red",
            )
        if run.stalled:
            yield f"{title}: no round has ended for {duration(run.quiet_for)}", "red"
        if run.state == "killed":
            yield f"{title}: its process was killed; the command that began it continues", "red"
        if run.problem:
            yield f"{title}: {printable(run.problem)}", "red"
