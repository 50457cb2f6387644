"""Partitions: which client holds which training rows, from a plan, the domains and a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from fedshift.base import seeds
from fedshift.base.errors import DataError
from fedshift.data.dealing.label_skew import Dirichlet, Pathological, SequentialDirichlet
from fedshift.data.dealing.shares import Ints, PartitionRule, Positive, Share, Training, training
from fedshift.data.samples import Domain

Percent = Annotated[float, Field(gt=0, le=100)]


class Even(PartitionRule):
    """Common part of `per-domain` and `pooled`: each domain dealt evenly to its own clients.

    Every prefix of a domain's order has its classes as even as they come, so that a client of
    ``samples_per_client`` rows is class-balanced. The price: in a domain with unequal classes the
    later clients hold what is left, the frequent classes.
    """

    clients_per_domain: Positive | dict[str, Positive] = 1
    samples_per_client: Positive | None = None  # None: the domain's training set, divided evenly

    def shares(self, train: Training, seed: int) -> list[Share]:
        """One share per client, ``domain-i``."""
        counts = train.each(self.clients_per_domain, "clients_per_domain")
        out = []
        for name, clients in counts.items():
            positions = train.of(name)
            generator = seeds.generator(seed, "partition", name)
            order = positions[_balanced(torch.from_numpy(train.label[positions]), generator)]
            held = [part[: self.samples_per_client] for part in np.array_split(order, clients)]
            if self.samples_per_client and min(map(len, held)) < self.samples_per_client:
                raise DataError(
                    f"domain {name!r} has {len(positions)} training samples; "
                    f"{clients} clients of {self.samples_per_client} need more; "
                    "lower samples_per_client or clients_per_domain"
                )
            out += [train.share(f"{name}-{i}", part) for i, part in enumerate(held)]
        return out


class PerDomain(Even):
    """Clients of one domain each; ``clients_per_domain`` is one number or one per domain."""

    kind: Literal["per-domain"] = "per-domain"


class Pooled(Even):
    """One client that holds what the clients of `per-domain` would hold together."""

    kind: Literal["pooled"] = "pooled"

    def shares(self, train: Training, seed: int) -> list[Share]:
        """A single share."""
        parts = super().shares(train, seed)
        rows = {
            name: torch.cat([part.rows[name] for part in parts if name in part.rows])
            for name in train.names
        }
        return [Share("pooled", "pooled", rows)]


class F2DC(PartitionRule):
    """A number of clients per domain, each with a percentage of the domain's training set (F2DC).

    A client gets int(n * percent / 100) rows, no row twice. ``allocation="random"`` keeps the
    total of ``clients`` and draws the counts: one per domain, each further one for a random domain
    that still has rows for it (what their documented commands run, see the flag's parsing).
    ``fix_missing_classes`` then swaps one row of each class that a client lacks in for a row of a
    class it holds twice; rows that nobody holds come first, but if there are none, **two clients
    share a row**. Switch it off for disjoint clients.
    """

    kind: Literal["f2dc"] = "f2dc"
    clients: dict[str, Positive]
    percent: Percent | dict[str, Percent]
    allocation: Literal["fixed", "random"] = "fixed"
    fix_missing_classes: bool = True

    def shares(self, train: Training, seed: int) -> list[Share]:
        """One share per client, ``domain-i``."""
        counts = train.each(self.clients, "clients")
        percents = train.each(self.percent, "percent")
        sizes = {name: int(len(train.of(name)) * percents[name] / 100) for name in counts}
        if self.allocation == "random":
            room = {name: len(train.of(name)) // max(1, size) for name, size in sizes.items()}
            counts = _compose(sum(counts.values()), room, seeds.numpy(seed, "partition"))
        out = []
        for name, clients in counts.items():
            positions, size = train.of(name), sizes[name]
            if clients * size > len(positions):
                raise DataError(
                    f"domain {name!r} has {len(positions)} training samples; {clients} clients of "
                    f"{percents[name]:g} % need {clients * size}; lower percent or clients"
                )
            rng = seeds.numpy(seed, "partition", name)
            held = rng.permutation(positions)[: clients * size].reshape(clients, size)
            if self.fix_missing_classes:
                _swap_in_missing(held, positions, train.label, rng)
            out += [train.share(f"{name}-{i}", rows) for i, rows in enumerate(held)]
        return out


class Heterogeneity(PartitionRule):
    """A knob between one domain per client and every domain at every client (FedDG_Benchmark).

    Client c gets n_d * (lam / N + (1 - lam) * h[c, d]) rows of domain d, rounded so that none is
    left over. h = 1 / (clients at home in d) where c is at home. With N >= D every client has one
    home: each domain gets one client, each further client goes where the most rows per client
    are. With N < D each domain, the largest first, goes to the client with the fewest rows.
    ``lam=0`` is one domain per client (or several whole ones), ``lam=1`` the same mix everywhere.
    """

    kind: Literal["heterogeneity"] = "heterogeneity"
    clients: Positive
    lam: Annotated[float, Field(ge=0, le=1)]

    def shares(self, train: Training, seed: int) -> list[Share]:
        """One share per client, ``client-i``."""
        sizes = np.bincount(train.domain, minlength=len(train.names))  # (D,)
        parts = self.lam / self.clients + (1 - self.lam) * _homes(sizes, self.clients)  # (N, D)
        ends = np.rint(np.cumsum(parts, axis=0) * sizes).astype(np.int64)
        held: list[list[Ints]] = [[] for _ in range(self.clients)]
        for d, name in enumerate(train.names):
            order = seeds.numpy(seed, "partition", name).permutation(train.of(name))
            for client, part in enumerate(np.split(order, ends[:-1, d])):
                held[client].append(part)
        return train.numbered([np.concatenate(parts) for parts in held])


class ClassHalves(PartitionRule):
    """Two clients per domain, one with the first half of the classes, one with the rest.

    FedDebias on PACS: classes 0-3 and 4-6 of four domains make eight clients. Draws nothing.
    """

    kind: Literal["class-halves"] = "class-halves"
    remedy: ClassVar[str] = "leave out the domain that lacks these classes"

    def shares(self, train: Training, seed: int) -> list[Share]:  # noqa: ARG002 - nothing is drawn
        """Shares ``domain-0`` and ``domain-1``."""
        first = train.label < (train.classes + 1) // 2
        return [
            train.share(f"{name}-{i}", train.of(name)[half[train.of(name)]])
            for name in train.names
            for i, half in enumerate((first, ~first))
        ]


DomainSkew = PerDomain | Pooled | F2DC | Heterogeneity | ClassHalves
LabelSkew = Dirichlet | SequentialDirichlet | Pathological
Partition = Annotated[DomainSkew | LabelSkew, Field(discriminator="kind")]


def deal(
    plan: Partition, domains: Mapping[str, Domain], splits: Mapping[str, Tensor], seed: int
) -> list[Share]:
    """Training rows of every client; a function of its arguments alone.

    >>> x, y = torch.zeros(6, 2, 2, 3), torch.tensor([0, 0, 0, 1, 1, 1])
    >>> domain = Domain("d", x, y, torch.zeros(6, dtype=torch.uint8), ("a", "b"))
    >>> shares = deal(PerDomain(clients_per_domain=2), {"d": domain}, {"d": domain.split}, seed=0)
    >>> [(share.client, len(share)) for share in shares]
    [('d-0', 3), ('d-1', 3)]
    """
    shares = plan.shares(training(domains, splits), seed)
    for share in shares:
        if not len(share):
            raise DataError(
                f"client {share.client!r} would hold no training sample; partition {plan.kind!r} "
                f"of {len(shares)} clients must give each at least one; {plan.remedy}"
            )
    return shares


def _balanced(labels: Tensor, generator: torch.Generator) -> Ints:
    """A random order (n,) whose every prefix has its classes as even as they come."""
    order = torch.randperm(len(labels), generator=generator)
    labels = labels[order]
    rank = torch.zeros_like(order)  # how many rows of the same class came before
    for label in labels.unique():
        of_class = labels == label
        rank[of_class] = torch.arange(int(of_class.sum()))
    return order[rank.argsort(stable=True)].numpy()


def _compose(total: int, room: Mapping[str, int], rng: np.random.Generator) -> dict[str, int]:
    """Clients per domain: one each, every further one for a random domain that has room."""
    counts = dict.fromkeys(room, 1)
    for _ in range(total - len(room)):
        free = [name for name in room if counts[name] < room[name]]
        if not free:
            raise DataError(
                f"{total} clients do not fit: the domains have room for {sum(room.values())} at "
                "this percentage; lower percent or clients"
            )
        counts[free[rng.integers(len(free))]] += 1
    return counts


def _swap_in_missing(held: Ints, positions: Ints, labels: Ints, rng: np.random.Generator) -> None:
    """Give each row of ``held`` (clients, size) every class of its domain, in place.

    A client with fewer rows than there are classes gets as many classes as it has rows.
    """
    for mine in held:
        for label in np.setdiff1d(labels[positions], labels[mine]):
            held_twice = np.flatnonzero(np.bincount(labels[mine])[labels[mine]] > 1)
            if not len(held_twice):
                break
            wanted = positions[labels[positions] == label]
            spare = np.setdiff1d(wanted, held)
            mine[rng.choice(held_twice)] = rng.choice(spare if len(spare) else wanted)


def _homes(sizes: Ints, clients: int) -> npt.NDArray[np.float64]:
    """Part of each domain that each client would hold without mixing, (N, D); columns sum to 1."""
    out = np.zeros((clients, len(sizes)))
    if clients < len(sizes):
        for d in np.argsort(-sizes, kind="stable"):
            out[(out @ sizes).argmin(), d] = 1
        return out
    scored_at_sites = np.ones(len(sizes), np.int64)
    for _ in range(clients - len(sizes)):
        scored_at_sites[(sizes / scored_at_sites).argmax()] += 1
    out[np.arange(clients), np.repeat(np.arange(len(sizes)), scored_at_sites)] = 1
    return out / scored_at_sites
