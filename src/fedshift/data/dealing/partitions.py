"""Partition rules: which client holds which training rows.

A scenario names one rule and its settings; the engine calls :func:`deal` once per run, and so does
every worker process. The result must depend on the rule, the domains and the seed alone: a rule
draws from generators derived from the seed and the domain's name, so adding a domain does not
change how the others are dealt.
"""

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
    """Base of `per-domain` and `pooled`: each domain is divided evenly among its own clients.

    The rows of a domain are put in an order that takes one row of each class in turn, cut into
    equal parts, and each part is cut to ``samples_per_client``. As long as every class has rows
    left, a client is class-balanced; in a domain with unequal classes the rare ones run out, so the
    later clients hold mostly the frequent classes.
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
    """Each client holds rows of one domain; ``clients_per_domain``: a number, or one per domain."""

    kind: Literal["per-domain"] = "per-domain"


class Pooled(Even):
    """One client that holds all the rows that the clients of `per-domain` would hold."""

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

    Each domain is shuffled, and each of its clients gets the next int(n * percent / 100) rows.
    ``allocation="random"`` keeps the total of ``clients`` and draws the counts: one client per
    domain, each further one for a random domain that still has rows for it (this is what their
    documented commands run, because of how the flag is parsed). ``fix_missing_classes`` then gives
    a client one row of each class it lacks, in exchange for a row of a class it holds twice. Rows
    that no client holds are used first, but if there are none, **two clients share a row**. Switch
    it off for disjoint clients.
    """

    kind: Literal["f2dc"] = "f2dc"
    clients: dict[str, Positive] = Field(default_factory=dict)  # empty: two in each domain
    percent: Percent | dict[str, Percent] = 20.0
    allocation: Literal["fixed", "random"] = "fixed"
    fix_missing_classes: bool = True

    def shares(self, train: Training, seed: int) -> list[Share]:
        """One share per client, ``domain-i``."""
        counts = train.each(self.clients or 2, "clients")
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
    """Interpolates from one domain per client to every domain at every client (FedDG_Benchmark).

    Client c gets n_d * (lam / N + (1 - lam) * h[c, d]) rows of domain d, rounded so that none is
    left over. First each client is assigned to a domain: h[c, d] = 1 / (number of clients assigned
    to d) if c is one of them, else 0. With N >= D clients each domain gets one, and each further
    client goes to the domain with the most rows per client. With N < D a client gets several whole
    domains: each domain, the largest first, goes to the client with the fewest rows so far.
    ``lam=0`` keeps this assignment, ``lam=1`` gives every client the same mix of domains.
    """

    kind: Literal["heterogeneity"] = "heterogeneity"
    clients: Positive = 10
    lam: Annotated[float, Field(ge=0, le=1)] = 0.5

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
    """The training rows of every client; a client without any is an error.

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
    """A random order (n,) that takes one row of each class in turn, while a class has rows left."""
    order = torch.randperm(len(labels), generator=generator)
    labels = labels[order]
    rank = torch.zeros_like(order)  # how many rows of the same class came before
    for label in labels.unique():
        of_class = labels == label
        rank[of_class] = torch.arange(int(of_class.sum()))
    return order[rank.argsort(stable=True)].numpy()


def _compose(total: int, room: Mapping[str, int], rng: np.random.Generator) -> dict[str, int]:
    """Clients per domain: one each, every further one in a random domain with enough rows left."""
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
    """Give every client, a row of ``held`` (clients, size), each class of its domain, in place.

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
    """Matrix h (N, D) of :class:`Heterogeneity`: a client's part of each domain at lam=0."""
    out = np.zeros((clients, len(sizes)))
    if clients < len(sizes):
        for d in np.argsort(-sizes, kind="stable"):
            out[(out @ sizes).argmin(), d] = 1
        return out
    clients_of = np.ones(len(sizes), np.int64)
    for _ in range(clients - len(sizes)):
        clients_of[(sizes / clients_of).argmax()] += 1
    out[np.arange(clients), np.repeat(np.arange(len(sizes)), clients_of)] = 1
    return out / clients_of
