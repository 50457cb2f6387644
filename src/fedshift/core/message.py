"""The messages between server and client, and their size in bytes.

The server makes a :class:`Broadcast` per client, the client replies with an :class:`Update`, and
every transport and the ledger handle both. A message holds tensors and scalars only, never a Python
object, so that it means the same in process and on another machine.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.tree import Tree

Scalar = bool | int | float | str
UNASKED = "update refused: nobody asked for it"  # why a reply that answers nothing is dropped
# What a message asks of the client. ``enrol``: report the number of examples and data summaries, in
# round 0. ``train``: one visit of local training. ``statistics``: re-estimate BatchNorm statistics
# (``bn=recompute``). ``score``: evaluate the client's own model on its own data. ``assess``: same,
# but the received model with the client's private entries. ``donate``: upload the private entries
# (``private_at_new_site=mean``). ``talk``: reply to one part's exchange beside training (``Ask``).
Task = Literal["enrol", "train", "statistics", "score", "assess", "donate", "talk"]


@dataclass(frozen=True, slots=True)
class Message:
    """Three flat sections of tensors, plus scalars, so that any transport can carry it."""

    client: str
    task: Task
    round: int
    shared: Tree = field(default_factory=dict)  # entries with one value for all clients
    personal: Tree = field(default_factory=dict)  # this client's values, stored by the server
    payload: Tree = field(default_factory=dict)  # "part/key"
    SECTIONS: ClassVar[tuple[str, ...]] = ("shared", "personal", "payload")
    NOT_SCALARS: ClassVar[frozenset[str]] = frozenset({*SECTIONS, "SECTIONS", "NOT_SCALARS"})

    def sections(self) -> tuple[Tree, Tree, Tree]:
        """All fields that are tensors, in the order of ``SECTIONS``."""
        return self.shared, self.personal, self.payload

    def scalars(self) -> dict[str, Any]:
        """All fields that are not tensors."""
        fields = self.__dataclass_fields__  # dataclasses.fields() would dominate the time
        return {name: getattr(self, name) for name in fields if name not in self.NOT_SCALARS}

    def bytes_by_kind(self) -> dict[str, int]:
        """Size in bytes by kind, for the ledger: one entry per section, payload split by part."""
        out = {"scalars": len(json.dumps(self.scalars())), "shared": tree.nbytes(self.shared)}
        out["personal"] = tree.nbytes(self.personal)
        for key, value in self.payload.items():
            kind = f"payload/{key.split('/')[0]}"
            out[kind] = out.get(kind, 0) + value.nbytes
        return {kind: size for kind, size in out.items() if size}

    @property
    def nbytes(self) -> int:
        """Size of tensors and scalars together, in bytes."""
        return sum(self.bytes_by_kind().values())

    def to_bytes(self) -> bytes:
        """The whole message as one safetensors blob."""
        sections = (tree.prefixed(s, getattr(self, s)) for s in self.SECTIONS)
        return tree.to_bytes(tree.merge(sections), self.scalars())

    @classmethod
    def from_bytes(cls, blob: bytes) -> Self:
        """Inverse of :meth:`to_bytes`; raises one line if the fields are not those of a message."""
        tensors, scalars = tree.from_bytes(blob)
        sections: dict[str, Any] = {s: tree.under(s, tensors) for s in cls.SECTIONS}
        try:
            return cls(**scalars, **sections)
        except TypeError as error:
            raise RunError(f"not a message of fedshift, or a damaged one ({error})") from None


@dataclass(frozen=True, slots=True)
class Broadcast(Message):
    """A message from the server to one client: a task, the current model, the parts' payload.

    ``visited`` are two rounds, which the client compares with the round of the state that it has
    kept: the last one from which the server knows that it kept state, and the last one in which it
    was asked to train, answered or not (-1: never). None: the server does not know.
    """

    visited: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Update(Message):
    """A client's reply to the server: its entries after training, payload, counts and metrics."""

    examples: int = 0
    steps: int = 0  # optimiser steps that moved the shared entries
    facts: dict[str, Scalar] = field(default_factory=dict)  # in enrolments: the domain, if allowed
    metrics: dict[str, float] = field(
        default_factory=dict
    )  # losses by name, counts of right answers
    kept: bool = False  # whether the client has kept state of this visit, which its next one needs

    def own(self) -> Update:
        """A copy in memory of its own, which no later reply overwrites."""
        sections: dict[str, Any] = {s: tree.clone(getattr(self, s)) for s in self.SECTIONS}
        return dataclasses.replace(self, **sections)

    def to_cpu(self) -> Update:
        """The same update with its tensors on the CPU."""
        sections: dict[str, Any] = {s: tree.to(getattr(self, s), "cpu") for s in self.SECTIONS}
        return dataclasses.replace(self, **sections)

    def scalars_only(self) -> Update:
        """The same update without its tensors, for replies already summed."""
        return dataclasses.replace(self, shared={}, personal={}, payload={})


@dataclass(frozen=True, slots=True)
class Lost:
    """A missing reply: the site failed, timed out, left, or its update was rejected."""

    client: str
    task: Task
    round: int
    reason: str
