"""``fedshift init``: a readable run file to begin with, and the reason for each choice in it.

The command line calls :func:`first_run`, which Python users have as ``fedshift.first_run``. Data at
a path are added under a name first, since a run file names its data. Nothing is trained, except for
a warm-up if time is limited.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedshift.base import tree
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.files import write_bytes
from fedshift.base.logs import printable
from fedshift.base.process import one_thread
from fedshift.base.times import duration
from fedshift.core.registry import SCENARIOS
from fedshift.core.scenario import Scenario
from fedshift.data.library.datasets import add, own_cards
from fedshift.data.library.loaded import datasets
from fedshift.engine.federation import stored
from fedshift.experiment.identity import configure_run
from fedshift.experiment.run import scenario_of
from fedshift.experiment.scenario import find_scenario
from fedshift.experiment.session import prepare
from fedshift.guide.machine import cost_of
from fedshift.guide.opening import list_path
from fedshift.guide.rules import (
    FEWEST,
    NEED_TARGET,
    PRIVACY_PARTS,
    QUESTIONS,
    Wish,
    fit_bytes,
    rule_for,
)
from fedshift.runs.run_file import RunFile

WIDTH = 96  # of a comment
NOTES = 8  # on the data, that the file repeats
SPACE = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class Choice:
    """A value of the run file and why it is that."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True)
class FirstRun:
    """A run file to begin with: what it trains, and the reason for each choice."""

    data: str
    question: str
    method: Choice
    scenario: tuple[Choice, ...]
    notes: tuple[str, ...] = ()  # on the data that were added

    @property
    def text(self) -> str:
        """The run file, with its comments."""
        return _text(self)

    def write(self, path: Path | str, *, force: bool = False) -> Path:
        """Write the file; one that exists is replaced only if ``force`` says so."""
        file = Path(path)
        if file.exists() and not force:
            raise ConfigError(f"{file} exists; choose another file, or replace it", "force")
        write_bytes(file, self.text.encode())
        return file


def first_run(  # noqa: PLR0913  one keyword per question
    data: str | Path,
    question: str = "single",
    *,
    target: str = "",
    privacy: str = "none",
    mb_per_round: float | None = None,
    mb: float | None = None,
    minutes: float | None = None,
    name: str = "",
    size: int | None = None,
    label: str = "",
    site: str = "",
) -> FirstRun:
    """A run file to begin with, by a rule of thumb.

    Args:
        data: a dataset's or a scenario's name, or a path that is added as a dataset.
        question: ``single`` (one model for all sites), ``per-site``, ``unlabelled`` (a site with
            inputs and no labels) or ``unseen`` (a site that nobody has seen yet).
        target: the site without labels, or the one that stands for those not seen yet; by default
            the smallest.
        privacy: ``none``, ``secure-aggregation`` or ``local-dp``.
        mb_per_round: megabytes that a round may move, up and down, all sites together.
        mb: the same of the whole run.
        minutes: what a run may take here, with one process.
        name: what to call data at a path.
        size: pixels of a side, of images at a path.
        label: the column of the label, of a table at a path.
        site: the column of the site, of a table at a path.

    Examples:
        >>> import fedshift
        >>> fedshift.first_run("digits", "per-site").method.value
        'fedbn'
    """
    wish = Wish(question, target, privacy, mb_per_round, mb, minutes)
    known, notes = named(data, name=name, size=size, label=label, site=site)
    return _planned(known, find_scenario(known), wish, notes)


def named(
    data: str | Path, *, name: str = "", size: int | None = None, label: str = "", site: str = ""
) -> tuple[str, tuple[str, ...]]:
    """The name of the data, and notes; what lies at a path is added under a name."""
    path, told = Path(data), str(data)
    if isinstance(data, str) and told in {*SCENARIOS.entries(), *datasets()}:
        extra = [
            k for k, v in (("name", name), ("size", size), ("label", label), ("site", site)) if v
        ]
        if extra:
            raise ConfigError(f"{extra[0]} is for data at a path, and {told!r} is known already")
        return told, ()
    if not path.exists():
        known = {*SCENARIOS.entries(), *datasets()}
        raise UnknownNameError.of("dataset, scenario or path", told, known)
    called = name or free_name(path)
    listing = list_path(path, label, site)
    side = size or listing.side
    columns = (label or "label", site or "domain")
    table = {k: v for k, v in (("label", label), ("domain", site)) if v}
    _, report = add(called, path, size=side, columns=columns, table=table)
    notes = [f"{path} is the dataset {called!r} from now on", *report["notes"]]
    if side and not size:
        notes.insert(1, listing.note)
    if report["left_out"]:
        notes.append(f"{len(report['left_out'])} left out, the first: {report['left_out'][0]}")
    return called, tuple(notes)


def free_name(path: Path) -> str:
    """A dataset's name from a path: the one it was added under, or its last part.

    >>> free_name(Path("my data.csv"))
    'my-data'
    """
    origin = str(path.resolve())
    for card in own_cards().values():
        if card.origin == origin:
            return card.name
    plain = SPACE.sub("-", path.resolve().stem).strip("-") or "data"
    taken = {*SCENARIOS.entries(), *datasets(), "own"}
    return plain if plain not in taken else f"{plain}-own"


def _planned(name: str, base: Scenario, wish: Wish, notes: tuple[str, ...]) -> FirstRun:
    """The rule of thumb on these data, tried up to the first round, then cut to its budget."""
    rule = rule_for(wish.question, wish.privacy)
    parts = [rule.method]
    why = [rule.why]
    chosen = [Choice("name", name, ""), *_asked(base, wish, list(rule.protocols))]
    if wish.privacy != "none":
        part, reason = PRIVACY_PARTS[wish.privacy]
        parts, why = [*parts, part], [*why, reason]
        chosen += _for_privacy(base, wish)
    up, clients = _traffic(" + ".join(parts), chosen)
    fit = fit_bytes(wish, up * clients, up * clients, base.rounds)
    parts += [fit.codec] if fit.codec else []
    rounds, slow = fit.rounds, ""
    if wish.minutes is not None:
        rounds, slow = _in_time(" + ".join(parts), chosen, rounds, wish.minutes)
    usual = "The default; see in the report whether accuracy still rises." if not fit.why else ""
    told = " ".join(filter(None, (fit.why, slow, usual)))
    chosen.append(Choice("rounds", rounds, told))
    method = Choice("method", " + ".join(parts), "\n".join(why))
    return FirstRun(name, wish.question, method, tuple(chosen), notes)


def _asked(base: Scenario, wish: Wish, protocols: list[str]) -> list[Choice]:
    """The target, if the question has one, and who is scored on what."""
    out = []
    if wish.question in NEED_TARGET:
        out.append(_target(base, wish))
    return [*out, Choice("protocols", protocols, _scored(protocols))]


def _scored(protocols: list[str]) -> str:
    """Who is scored on what, in words."""
    if "unseen-adapted" in protocols:
        return "Scored at the held-out site, as the model is and after it adapts without labels."
    if "unseen" in protocols:
        return "Scored at the held-out site."
    if "personal" in protocols:
        return "Each site's own model is scored on its own data."
    return "One model is scored on the data of every site."


def _target(base: Scenario, wish: Wish) -> Choice:
    """The domain that is held out: the one that was named, or the smallest."""
    domains = stored(base)
    if wish.target and wish.target not in domains:
        raise UnknownNameError.of("site", wish.target, domains)
    if len(domains) < 3:
        raise ConfigError(
            f"{base.name!r} has {len(domains)} site{'s' * (len(domains) != 1)}, and one is held "
            "out: that takes three; ask for a single model, or for one per site"
        )
    smallest = min(domains, key=lambda one: (len(domains[one].y), one))
    target = wish.target or base.unseen or smallest
    why = "" if wish.target else " You named none, so it is the smallest."
    if not wish.target and base.unseen:
        why = " You named none, so it is the scenario's."
    stands = "stands for sites not seen yet" if wish.question == "unseen" else "adapts"
    return Choice("unseen", target, f"It {stands}: its labels are used for its score alone.{why}")


def _for_privacy(base: Scenario, wish: Wish) -> list[Choice]:
    """What a privacy part needs of the scenario."""
    out = []
    if base.private_at_new_site == "mean":
        why = "A privacy part does not cover private entries that sites would send."
        out.append(Choice("private_at_new_site", "refuse", why))
    if base.bn == "recompute":
        out.append(Choice("bn", "average", "Statistics of single sites would not be covered."))
    if wish.privacy == "local-dp" and base.backbone == "mlp":
        why = "Noise grows with the number of weights, and this net has fewest: one layer."
        return [*out, Choice("backbone", "linear", why)]
    if wish.privacy == "local-dp":
        why = "BatchNorm's statistics would stay at the sites; this normalisation has none."
        out.append(Choice("backbone_options", dict(base.backbone_options) | {"norm": "group"}, why))
    return out


def _run_file(method: str, chosen: list[Choice]) -> RunFile:
    return RunFile(method=method, scenario={one.key: one.value for one in chosen})


def _traffic(method: str, chosen: list[Choice]) -> tuple[float, int]:
    """Bytes of the entries that travel to or from one client, and how many clients take part.

    The run is prepared as it would be, so whatever would stop it before round 1 does so here.
    """
    scenario = scenario_of(_run_file(method, chosen))
    config, whole = configure_run(method, scenario, data="")
    with one_thread():
        session = prepare(config, whole)
    try:
        return float(tree.nbytes(session.server.shared)), scenario.cohort_size(
            len(session.server.roster)
        )
    finally:
        session.transport.close()


def _in_time(method: str, chosen: list[Choice], rounds: int, minutes: float) -> tuple[int, str]:
    """As many rounds as a warm-up says fit, and the reason."""
    whole = [*chosen, Choice("rounds", rounds, "")]
    cost = cost_of(method, scenario_of(_run_file(method, whole)))
    allowed = min(rounds, int(60 * minutes / max(cost.seconds / rounds, 1e-9)))
    if allowed < FEWEST:
        raise ConfigError(
            f"{minutes:g} minutes are too few: a round takes about "
            f"{duration(cost.seconds / rounds)} here, and {FEWEST} rounds are the least; allow "
            "more, or prepare the data at a smaller size"
        )
    about = f"about {duration(cost.seconds / rounds * allowed)} here with one process"
    if allowed == rounds:
        return rounds, f"They take {about}."
    return allowed, f"{allowed} rounds in place of {rounds} take {about}."


def _text(found: FirstRun) -> str:
    lines = [
        *_comment(f"A first run on {found.data}, written by `fedshift init`."),
        "#",
        f"#   {_command('run', 'THIS-FILE')}  trains it, and keeps everything under runs/",
        f"#   {_command('doctor', found.data)}  says how the sites differ",
        f"#   {_command('advise', 'THIS-FILE')}  measures methods, "
        f"with the question {found.question};",
        f"#   {'':28}  what is here follows a rule of thumb",
        "#",
        *_comment(f"Question: {QUESTIONS[found.question]}"),
        *(line for note in found.notes[:NOTES] for line in _comment(f"Note: {note}.")),
        "",
        *_lines(found.method),
        "",
        *_lines(Choice("seed", 0, "One seed is one draw: repeat with others before you conclude.")),
        "",
        "[scenario]",
    ]
    for choice in found.scenario:
        lines += [*_lines(choice), ""]
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, what: str) -> str:
    return f"fedshift {name} {printable(what)}".ljust(28)


def _comment(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in textwrap.wrap(printable(text), WIDTH) or [""]]


def _lines(choice: Choice) -> list[str]:
    reasons = [line for part in choice.why.split("\n") if part for line in _comment(part)]
    return [*reasons, f"{choice.key} = {_toml(choice.value)}"]


def _toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).partition(" = ")[2].strip()
