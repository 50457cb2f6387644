"""Every update is checked before it touches the model: what it may hold, and why it is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedshift import tree
from fedshift.message import Broadcast, Update
from fedshift.net import Scope
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.server import Server

SLACK = 16 * 2**20  # bytes beyond four times the model
COUNTED = [f"{split}/{key}" for split in ("val", "test") for key in ("right", "count", "loss")]


def objection(server: Server, asked: Broadcast, update: Update, *, examined: bool = False) -> str:
    """The first reason to refuse ``update``, empty if there is none; looks at each tensor once.

    Entries of a model that our own worker has ``examined`` are known to be finite.
    """
    sections = ("payload",) if examined else update.SECTIONS
    return (
        _wrong_address(asked, update)
        or _wrong_scalars(server, update)
        or _too_large(server, update)
        or _wrong_entries(server, "shared", update.shared, uploaded(server, update.task))
        or _wrong_entries(server, "personal", update.personal, own(server, update.task))
        or _wrong_payload(server, update)
        or _not_finite({k: v for s in sections for k, v in getattr(update, s).items()})
        or next(filter(None, (part.vet(server, update) for part in server.method.parts)), "")
    )


def uploaded(server: Server, task: str) -> Set[str]:
    """Shared entries that the reply to a task holds."""
    statistics = server.statistics
    if task == "statistics":
        return statistics
    if task != "train" or any(part.conceals for part in server.method.parts):
        return set()
    return server.shared.keys() - (statistics if server.scenario.bn == "recompute" else set())


def own(server: Server, task: str) -> Set[str]:
    """Entries of the client's own that the reply to a task holds."""
    scope = {"train": Scope.PERSONAL, "donate": Scope.PRIVATE}.get(task)
    return set() if scope is None else server.keys(scope)


def _wrong_address(asked: Broadcast, update: Update) -> str:
    if (update.task, update.round) == (asked.task, asked.round):
        return ""
    return (
        f"it answers {update.task!r} of round {update.round}, not {asked.task!r} of round "
        f"{asked.round}"
    )


def _wrong_scalars(server: Server, update: Update) -> str:
    for name, low in (("examples", 1), ("steps", 0)):
        value = getattr(update, name)
        if type(value) is not int or value < low:
            return f"{name} is {value!r}, not a whole number from {low} on"
    enrolled = server.roster.get(update.client)
    if enrolled and enrolled.examples != update.examples and update.task != "enrol":
        return f"examples is {update.examples}, but it enrolled with {enrolled.examples}"
    for name in COUNTED if update.task in ("score", "assess") else ():
        if name not in update.metrics:
            return f"metric {name} is missing"
    for name, number in update.metrics.items():
        if type(number) not in (int, float) or not math.isfinite(number):
            return f"metric {name} is {number!r}, not a finite number"
    return ""


def _too_large(server: Server, update: Update) -> str:
    limit = server.policy.max_bytes or 4 * server.nbytes + SLACK
    size = sum(tree.nbytes(getattr(update, section)) for section in update.SECTIONS)
    return f"it has {size} bytes, and max_bytes is {limit}" if size > limit else ""


def _wrong_entries(
    server: Server, section: str, found: Mapping[str, Tensor], expected: Set[str]
) -> str:
    if found.keys() != expected:
        missing, odd = sorted(expected - found.keys()), sorted(found.keys() - expected)
        many = f"{len(missing)} missing and {len(odd)} unexpected {section} entries"
        return f"{many}, such as {(missing + odd)[0]}"
    for key, value in found.items():
        model = server.initial[key]
        if value.shape != model.shape:
            return f"{key} has shape {tuple(value.shape)}, not {tuple(model.shape)}"
        if value.dtype is not model.dtype:
            return f"{key} is {value.dtype}, not {model.dtype}"
    return ""


def _wrong_payload(server: Server, update: Update) -> str:
    if update.payload and update.task not in ("enrol", "train", "talk"):
        return f"{update.task!r} has no payload, but {next(iter(update.payload))} is there"
    known = {part.name for part in server.method.parts}
    for key in update.payload:
        owner, _, name = key.partition("/")
        if owner not in known or not name:
            return f"payload {key!r} belongs to no part of the method"
    return ""


def _not_finite(entries: Tree) -> str:
    floats = {key: value for key, value in entries.items() if value.is_floating_point()}
    if not floats:
        return ""
    # One fused pass. It may overflow where every value is finite: then look at each.
    if bool(torch.nn.utils.get_total_norm(floats.values()).isfinite()):
        return ""
    bad = next((k for k, v in floats.items() if not bool(v.isfinite().all())), "")
    return f"{bad} has a value that is not finite" if bad else ""
