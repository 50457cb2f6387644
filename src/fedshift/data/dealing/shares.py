"""The types that partitions work on: all training rows, and each client's share of them.

The rules in ``partitions`` and ``label_skew`` take a :class:`Training` and return a list of
:class:`Share`; both hold row indices, never samples. A rule must depend on its arguments alone, so
that every process of a run computes the same shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedshift.base.errors import ConfigError, DataError
from fedshift.data.samples import Domain

Positive = Annotated[int, Field(ge=1)]
Ints = npt.NDArray[np.int64]
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Share:
    """The training rows of one client, grouped by domain."""

    client: str
    domain: str  # name of its only domain; "mixed" for several, "pooled" for all data at one site
    rows: dict[str, Tensor]  # (n,) int64 each

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))


@dataclass(frozen=True)
class Training:
    """All training rows, one domain after another, each in stored order.

    A *position* is an index into these arrays; ``domain`` and ``row`` say which stored row it is.
    """

    names: tuple[str, ...]
    domain: Ints  # (n,) index into names
    row: Ints  # (n,) row in that domain's stored arrays
    label: Ints  # (n,)
    classes: int

    def of(self, name: str) -> Ints:
        """Positions of a domain's rows."""
        return np.flatnonzero(self.domain == self.names.index(name))

    def share(self, client: str, positions: Ints) -> Share:
        """A client's share; within a domain, rows keep the order of ``positions``."""
        owner = self.domain[positions]
        rows = {
            self.names[d]: torch.from_numpy(self.row[positions[owner == d]])
            for d in np.unique(owner)
        }
        return Share(client, next(iter(rows)) if len(rows) == 1 else "mixed", rows)

    def numbered(self, parts: Sequence[Ints]) -> list[Share]:
        """One share per part, named ``client-i``, zero-padded so that names sort by number."""
        digits = len(str(len(parts) - 1))
        return [self.share(f"client-{i:0{digits}d}", part) for i, part in enumerate(parts)]

    def each(self, value: Number | dict[str, Number], field: str) -> dict[str, Number]:
        """One value per domain, in order; a single value is used for all of them."""
        given = value if isinstance(value, dict) else dict.fromkeys(self.names, value)
        if set(given) != set(self.names):
            raise ConfigError(
                f"{field} names {', '.join(sorted(given))}; the domains trained on are "
                f"{', '.join(self.names)}; give one value for each of them and no other"
            )
        return {name: given[name] for name in self.names}


def training(domains: Mapping[str, Domain], splits: Mapping[str, Tensor]) -> Training:
    """The rows of every domain whose split code is 0 (train)."""
    rows = {}
    for name, domain in domains.items():
        if name not in splits or len(splits[name]) != len(domain.y):
            found = len(splits[name]) if name in splits else "no"
            raise DataError(
                f"domain {name!r} has {len(domain.y)} samples, but {found} split codes; "
                "give apply_split(rule, domain, seed) of each domain"
            )
        rows[name] = np.flatnonzero(splits[name].numpy() == 0)
        if not len(rows[name]):
            raise DataError(
                f"domain {name!r} has no training sample in its split; a domain that is trained "
                "on needs some; use another split rule, or make the domain unseen"
            )
    return Training(
        tuple(domains),
        np.repeat(np.arange(len(rows)), [len(r) for r in rows.values()]),
        np.concatenate(list(rows.values())),
        np.concatenate([domains[name].strata.numpy()[r] for name, r in rows.items()]),
        max(len(domain.classes) for domain in domains.values()),
    )


class PartitionRule(BaseModel):
    """Base of all partition rules: immutable, and an unknown setting is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    remedy: ClassVar[str] = "use fewer clients or a split with more training samples"

    @property
    def same_rows(self) -> bool:
        """Whether the domains show the same rows (as rotations do) and must be split alike."""
        return False

    def shares(self, train: Training, seed: int) -> list[Share]:
        """Assign the training rows to clients; must be a function of its arguments alone."""
        raise NotImplementedError
