"""What left each site in a run, from its ledger, held against what the method's parts declare.

``fedshift ledger`` prints it. A payload of a part that declares none in ``shares`` is an error: a
method must say what it sends. Nothing here reads what was sent, only kinds and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.base.errors import RunError
from fedshift.core.method import Method
from fedshift.runs.record import read_config, read_lines

SCALARS = {
    "enrol": "number of examples, and the domain if it is allowed",
    "train": "number of examples and steps, losses by name",
    "score": "counts of right answers, summed loss",
    "assess": "counts of right answers, summed loss",
}
SECTIONS = {
    "shared": "entries with one value for all sites",
    "personal": "this site's own entries",
    "facts": "class names, shape of inputs, and the domain if it is allowed",
}


@dataclass(frozen=True)
class Left:
    """Bytes of one kind that left one site in one round, for one task."""

    round: int
    client: str
    task: str
    kind: str
    bytes: int
    declared: str  # what it is; empty if nobody has declared it


def preparation_line(client: str, size: int, what: str) -> dict[str, Any]:
    """A line of the ledger, in round 0: what a site told for the common preparation of tables.

    Like facts it is not part of a run's traffic, which is that of the method.
    """
    row = {"round": 0, "task": "preparation", "client": client, "direction": "up"}
    return row | {"bytes": size, "kinds": {"preparation": size}, "what": what}


def what_left(path: Path, method: Method | None = None) -> list[Left]:
    """Every kind that left a site, in the order of the ledger.

    ``method`` is needed for a run that was made from a Method object.
    """
    known = shares_of(method or read_config(path).build())
    file = path / "ledger.jsonl"
    if not file.exists():
        raise RunError(f"{path} has no ledger.jsonl; no round of it is finished")
    out: list[Left] = []
    for row in read_lines(file):
        try:
            out += _of_row(row, known)
        except (KeyError, TypeError, AttributeError):
            raise RunError(f"{file} has a damaged line; restore or delete the run") from None
    return out


def _of_row(row: Mapping[str, Any], known: Mapping[str, str]) -> list[Left]:
    if row["direction"] != "up":
        return []
    task = row["task"]
    known = {**known, "": str(row.get("what", ""))}
    return [
        Left(row["round"], row["client"], task, kind, int(size), _declared(kind, task, known))
        for kind, size in row["kinds"].items()
    ]


def _declared(kind: str, task: str, known: Mapping[str, str]) -> str:
    section, _, part = kind.partition("/")
    if section == "payload":
        return known.get(part, "")
    if section == "scalars":
        return SCALARS.get(task, "number of examples")
    if section == "preparation":
        return known[""]  # the line itself says what it holds
    return SECTIONS.get(section, "")


def shares_of(method: Method) -> dict[str, str]:
    """What each part declares to send; channels send the update itself, in another form."""
    out = {item.name: item.shares for item in method.declared if item.shares}
    for channel in method.channels:
        form = "keys, shares or the update, hidden" if channel.gives_privacy else "the update"
        out.setdefault(channel.name, f"{form}, as {channel.name} encodes it")
    return out


def require_declared(left: Sequence[Left]) -> None:
    """Raise if a payload left that no part has declared."""
    for one in left:
        if not one.declared:
            raise RunError(
                f"round {one.round}: {one.kind} left site {one.client} ({one.bytes} bytes), and no "
                "part declares it; name what it is in the part's `shares`"
            )
