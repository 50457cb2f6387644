"""Sites with their samples: what a federation looks like once the data are dealt out.

Plain containers that training and evaluation read: ``engine.federation`` fills them from a
scenario, ``deploy.sites`` at a real site. They hold indices into stored domains and must never
change a stored array, which other sites use too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedshift.base import seeds
from fedshift.data.dealing.shares import Share
from fedshift.data.dealing.splits import TEST, TRAIN, VAL
from fedshift.data.samples import Domain, Pixels, Samples, union


@dataclass(frozen=True)
class Splits:
    """Train, validation and test samples of a site or of a domain."""

    train: Samples
    val: Samples
    test: Samples
    unlabelled: Samples | None = None  # further training samples whose labels nobody knows

    @property
    def inputs(self) -> Samples:
        """Unlabelled inputs to adapt to: the training ones, or the test ones if there are none."""
        return (self.train if len(self.train) else self.test).unlabelled()


@dataclass(frozen=True)
class Site:
    """One client's data; it lives as long as the run, whereas a ``Client`` lives for one visit."""

    id: str
    domain: str
    data: Splits


@dataclass(frozen=True)
class Federation:
    """All sites of a scenario, and what the evaluation may see."""

    sites: Mapping[str, Site]
    domains: Mapping[str, Splits]  # whole training domains, for the global protocol
    unseen: Splits | None
    classes: tuple[str, ...]
    shape: tuple[int, ...]

    def to(self, device: str) -> Federation:
        """The same federation with its samples on ``device``; a shared array moves once."""
        if device == "cpu":
            return self
        moved: dict[int, Tensor] = {}

        def tensor(held: Tensor) -> Tensor:
            return moved.setdefault(id(held), held.to(device))

        def samples(held: Samples) -> Samples:
            domains = None if held.domains is None else tensor(held.domains)
            return replace(
                held, x=tensor(held.x), y=tensor(held.y), rows=tensor(held.rows), domains=domains
            )

        def splits(held: Splits) -> Splits:
            further = samples(held.unlabelled) if held.unlabelled else None
            return Splits(samples(held.train), samples(held.val), samples(held.test), further)

        return replace(
            self,
            sites={k: replace(site, data=splits(site.data)) for k, site in self.sites.items()},
            domains={k: splits(held) for k, held in self.domains.items()},
            unseen=splits(self.unseen) if self.unseen else None,
        )


def pooled(federation: Federation) -> Federation:
    """The same data at one site, "pooled": all training samples, and the tests of all domains."""
    held = [site.data for site in federation.sites.values()]
    further = [data.unlabelled for data in held if data.unlabelled]
    data = Splits(
        union([data.train for data in held]),
        union([splits.val for splits in federation.domains.values()]),
        union([splits.test for splits in federation.domains.values()]),
        union(further) if further else None,
    )
    return replace(federation, sites={"pooled": Site("pooled", "pooled", data)})


def whole(domain: Domain, codes: Tensor, pixels: Pixels, number: int = 0) -> Splits:
    """The three splits of a domain, from the split code (N,) of each row; ``number`` names it."""
    rows = [(codes == code).nonzero().flatten() for code in (TRAIN, VAL, TEST)]
    numbers = torch.tensor(number).expand(len(codes))  # one number in memory
    return Splits(*(Samples(domain.x, domain.y, part, pixels, numbers) for part in rows))


def site(share: Share, domains: Mapping[str, Splits]) -> Site:
    """A client with its training rows, scored on the whole test sets of the domains it holds."""
    held = [replace(domains[name].train, rows=rows) for name, rows in share.rows.items()]
    val, test = (
        union([getattr(domains[name], split) for name in share.rows]) for split in ("val", "test")
    )
    return Site(share.client, share.domain, Splits(union(held), val, test))


def hide_labels(site: Site, share: float, seed: int) -> Site:
    """A client that knows the labels of a share of its training samples, drawn at random.

    At least one sample keeps its label. The others become unlabelled samples, in stored order.
    """
    train = site.data.train
    order = seeds.numpy(seed, "labelled", site.id).permutation(len(train))
    known = max(1, round(share * len(train)))
    kept, hidden = (
        replace(train, rows=train.rows[torch.from_numpy(np.sort(part))])
        for part in np.split(order, [known])
    )
    data = replace(site.data, train=kept, unlabelled=hidden.unlabelled())
    return replace(site, data=data)
