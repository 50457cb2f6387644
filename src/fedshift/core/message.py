"""Everything that travels between server and client, and what it weighs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from fedshift.base import tree
from fedshift.base.tree import Tree

Scalar = bool | int | float | str
Task = Literal["enrol", "train", "statistics", "score", "assess", "donate", "talk"]


@dataclass(frozen=True, slots=True)
class Message:
    """Named sections of tensors plus scalars; flat, so that any transport can carry it."""

    client: str
    task: Task
    round: int
    shared: Tree = field(default_factory=dict)  # entries every client has in common
    personal: Tree = field(default_factory=dict)  # this client's own entries, known to the server
    payload: Tree = field(default_factory=dict)  # "part/key"
    SECTIONS: ClassVar[tuple[str, ...]] = ("shared", "personal", "payload")
    NOT_SCALARS: ClassVar[frozenset[str]] = frozenset({*SECTIONS, "SECTIONS", "NOT_SCALARS"})

    def sections(self) -> tuple[Tree, Tree, Tree]:
        """All fields that are tensors, in the order of ``SECTIONS``."""
        return self.shared, self.personal, self.payload

    def scalars(self) -> dict[str, Any]:
        """All fields that are not tensors."""
        fields = self.__dataclass_fields__  # dataclasses.fields takes longer than the rest
        return {name: getattr(self, name) for name in fields if name not in self.NOT_SCALARS}

    def weigh(self) -> dict[str, int]:
        """Bytes by kind: one entry per section, payload split by part."""
        out = {"scalars": len(json.dumps(self.scalars())), "shared": tree.nbytes(self.shared)}
        out["personal"] = tree.nbytes(self.personal)
        for key, value in self.payload.items():
            kind = f"payload/{key.split('/')[0]}"
            out[kind] = out.get(kind, 0) + value.nbytes
        return {kind: size for kind, size in out.items() if size}

    @property
    def nbytes(self) -> int:
        """Bytes of tensors and scalars together."""
        return sum(self.weigh().values())

    def to_bytes(self) -> bytes:
        """The whole message as one safetensors blob."""
        sections = (tree.prefixed(s, getattr(self, s)) for s in self.SECTIONS)
        return tree.to_bytes(tree.merge(sections), self.scalars())

    @classmethod
    def from_bytes(cls, blob: bytes) -> Self:
        """Inverse of :meth:`to_bytes`."""
        tensors, scalars = tree.from_bytes(blob)
        sections: dict[str, Any] = {s: tree.under(s, tensors) for s in cls.SECTIONS}
        return cls(**scalars, **sections)


@dataclass(frozen=True, slots=True)
class Broadcast(Message):
    """Server to one client."""


@dataclass(frozen=True, slots=True)
class Update(Message):
    """One client to the server."""

    examples: int = 0
    steps: int = 0  # optimiser steps that moved the shared entries
    facts: dict[str, Scalar] = field(default_factory=dict)  # enrolment: domain and the like
    metrics: dict[str, float] = field(
        default_factory=dict
    )  # losses by name, counts of right answers

    def own(self) -> Update:
        """The same in memory of its own."""
        sections: dict[str, Any] = {s: tree.clone(getattr(self, s)) for s in self.SECTIONS}
        return dataclasses.replace(self, **sections)

    def to_cpu(self) -> Update:
        """The same in the processor's memory."""
        sections: dict[str, Any] = {s: tree.to(getattr(self, s), "cpu") for s in self.SECTIONS}
        return dataclasses.replace(self, **sections)

    def scalars_only(self) -> Update:
        """The same without tensors."""
        return dataclasses.replace(self, shared={}, personal={}, payload={})


@dataclass(frozen=True, slots=True)
class Lost:
    """A message without an answer that counts: the site failed, hung, left, or was refused."""

    client: str
    task: Task
    round: int
    reason: str
