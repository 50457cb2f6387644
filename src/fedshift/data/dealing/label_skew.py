"""Partitions that skew labels: within each domain, over all domains, or over looks of one set.

``partitions`` offers these rules to scenarios. Each rule only says how one list of labels is split
among ``clients`` (``split``); the base class decides what that list is, by ``within``:

- ``domain``: each domain is split on its own, so clients differ in domain and in labels;
- ``union``: all domains together, so a client may hold rows of several;
- ``aligned``: the domains are looks of the same rows, such as rotations. The rows are split once,
  then each row is taken in one look.

No row may go to two clients, and no rule may draw from anything but the generator it is given.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedshift.base import seeds
from fedshift.base.errors import DataError
from fedshift.data.dealing.shares import Ints, PartitionRule, Positive, Share, Training


class Skewed(PartitionRule):
    """Base of the label skews: ``clients`` in each domain, or over all domains."""

    clients: Positive = 5  # per domain if within="domain", in all otherwise
    within: Literal["domain", "union", "aligned"] = "domain"
    mixing: Annotated[float, Field(gt=0)] | None = None  # for aligned domains, see aligned()

    @property
    def same_rows(self) -> bool:
        """Aligned domains show the same rows, so all get the same split."""
        return self.within == "aligned"

    def split(self, labels: Ints, rng: np.random.Generator) -> list[Ints]:
        """The positions in ``labels`` (n,) that each client gets."""
        raise NotImplementedError

    def shares(self, train: Training, seed: int) -> list[Share]:
        """One share per client: ``domain-i`` within domains, ``client-i`` otherwise."""
        if self.within == "union":
            return train.numbered(self.split(train.label, seeds.numpy(seed, "partition")))
        if self.within == "aligned":
            return self.aligned(train, seeds.numpy(seed, "partition"))
        out = []
        for name in train.names:
            positions, rng = train.of(name), seeds.numpy(seed, "partition", name)
            parts = self.split(train.label[positions], rng)
            out += [train.share(f"{name}-{i}", positions[part]) for i, part in enumerate(parts)]
        return out

    def aligned(self, train: Training, rng: np.random.Generator) -> list[Share]:
        """Split the common rows among clients, then choose the look in which each row is seen.

        Without ``mixing`` client i sees all its rows in look i (modulo the number of looks). With
        it, client i draws q ~ Dir(mixing) over the looks once, and a look from q for each row.
        Either way a row is used in one look only.
        """
        looks = np.stack(
            [train.of(name) for name in train.names if _as_long(train, name)]
        )  # (D, n)
        if len(looks) < len(train.names) or (train.label[looks] != train.label[looks[0]]).any():
            raise DataError(
                "the domains do not hold the same rows in the same order; within='aligned' is for "
                "looks of one set, such as rotations that are not disjoint"
            )
        held = []
        for i, rows in enumerate(self.split(train.label[looks[0]], rng)):
            q = rng.dirichlet(np.full(len(looks), self.mixing)) if self.mixing else None
            look = i % len(looks) if q is None else rng.choice(len(looks), len(rows), p=q)
            held.append(looks[look, rows])
        return train.numbered(held)


class Dirichlet(Skewed):
    """Label skew: the clients' parts of each class are drawn from Dir(alpha, ..., alpha).

    For each class: shuffle its rows, draw the clients' parts, cut the rows accordingly. Afterwards
    each client below ``min_size`` gets random rows of the client that then holds the most. The
    usual code draws all again until no client is below, which may never end with many clients.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0)] = 0.5
    min_size: Positive = 10

    def split(self, labels: Ints, rng: np.random.Generator) -> list[Ints]:
        """Divide class by class, then enforce the minimum size."""
        if len(labels) < self.clients * self.min_size:
            raise DataError(
                f"{len(labels)} training samples are too few for {self.clients} clients of at "
                f"least {self.min_size}; lower min_size or clients"
            )
        holder = np.zeros(len(labels), np.int64)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            parts = rng.dirichlet(np.full(self.clients, self.alpha))  # (N,)
            ends = np.rint(np.cumsum(parts) * len(rows)).astype(np.int64)
            for client, part in enumerate(np.split(rows, ends[:-1])):
                holder[part] = client
        _top_up(holder, self.clients, self.min_size, rng)
        return [np.flatnonzero(holder == client) for client in range(self.clients)]


class SequentialDirichlet(Skewed):
    """Clients one after another, each from what the earlier ones left (FedDebias).

    p is the class distribution of the rows that remain, q ~ Dir(concentration * p + 1e-6); the
    client draws n / N rows with classes from q, without replacement, q renormalised whenever a
    class is used up. p sums to 1, so the parameters are about concentration / K: far more skewed
    than Dir(0.1) over the classes. ``uniform_prior`` is the latter,
    q ~ Dir(concentration, ..., concentration) (their CIFAR-100).
    """

    kind: Literal["sequential-dirichlet"] = "sequential-dirichlet"
    concentration: Annotated[float, Field(gt=0)] = 0.1
    uniform_prior: bool = False

    def split(self, labels: Ints, rng: np.random.Generator) -> list[Ints]:
        """Every row goes to some client; sizes differ by one at most."""
        of_class = [rng.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)]
        left = np.array([len(rows) for rows in of_class])  # (K,)
        out = []
        for turn in range(self.clients):
            size = (len(labels) + self.clients - 1 - turn) // self.clients
            p = np.ones(len(left)) if self.uniform_prior else left / max(1, left.sum())
            take = _draw(rng.dirichlet(self.concentration * p + 1e-6), left, size, rng)
            ends = zip(of_class, left - take, left, strict=True)
            out.append(np.concatenate([rows[start:end] for rows, start, end in ends]))
            left = left - take
        return out


class Pathological(Skewed):
    """``classes_per_client`` classes per client, each class divided evenly among its holders.

    Clients choose in turn, at random among the classes that the fewest clients hold so far, so the
    numbers of holders differ by one at most. If a class has fewer rows than holders, some of its
    holders get none of it.
    """

    kind: Literal["pathological"] = "pathological"
    classes_per_client: Positive = 2

    def split(self, labels: Ints, rng: np.random.Generator) -> list[Ints]:
        """Choose the holders of each class, then divide its rows among them."""
        classes, of = np.unique(labels, return_inverse=True)
        k = self.classes_per_client
        if not k <= len(classes) <= k * self.clients:
            raise DataError(
                f"{self.clients} clients of {k} classes cannot cover the {len(classes)} classes "
                f"found; set classes_per_client to at most {len(classes)}, and such that "
                f"classes_per_client * clients is at least {len(classes)}"
            )
        holders: list[list[int]] = [[] for _ in classes]
        for client in range(self.clients):
            rank = np.array([len(h) for h in holders]) + rng.random(len(classes))
            for label in np.argsort(rank)[:k]:
                holders[label].append(client)
        out: list[list[Ints]] = [[] for _ in range(self.clients)]
        for label, clients in enumerate(holders):
            rows = rng.permutation(np.flatnonzero(of == label))
            for client, part in zip(clients, np.array_split(rows, len(clients)), strict=True):
                out[client].append(part)
        return [np.concatenate(parts) for parts in out]


def _as_long(train: Training, name: str) -> bool:
    return len(train.of(name)) == len(train.of(train.names[0]))


def _top_up(holder: Ints, clients: int, least: int, rng: np.random.Generator) -> None:
    """Move random rows from the largest client to each client below ``least``, in place."""
    counts = np.bincount(holder, minlength=clients)
    for poor in np.flatnonzero(counts < least):
        while counts[poor] < least:
            rich = counts.argmax()
            holder[rng.choice(np.flatnonzero(holder == rich))] = poor
            counts[poor] += 1
            counts[rich] -= 1


def _draw(q: npt.NDArray[np.float64], left: Ints, size: int, rng: np.random.Generator) -> Ints:
    """How many rows of each class (K,) a client takes when ``left`` remain.

    The rule is to draw row by row and to renormalise q when a class is used up. Drawing all rows at
    once, cutting each class at what remains and drawing again what is missing has the same
    distribution. Each repetition either completes the client or uses up a class, so it ends.
    """
    take = np.zeros_like(left)
    while short := size - int(take.sum()):
        weights = q * (take < left)
        if weights.sum() < 1e-300:  # q has all its mass on classes that are used up
            weights = (left - take).astype(np.float64)
        take = np.minimum(take + rng.multinomial(short, weights / weights.sum()), left)
    return take
