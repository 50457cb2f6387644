"""From a scenario and a seed to sites with data: who holds what, who is scored on what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedshift.data.named import own_datasets
from fedshift.data.partition import deal
from fedshift.data.partition_table import Table, table
from fedshift.data.samples import Domain, Pixels, Samples, union
from fedshift.data.shares import Share
from fedshift.data.splits import TEST, TRAIN, VAL, apply_split
from fedshift.errors import DataError, UnknownNameError
from fedshift.registry import DATASETS
from fedshift.scenario import Scenario


@dataclass(frozen=True)
class Splits:
    """Train, validation and test samples of a site or of a domain."""

    train: Samples
    val: Samples
    test: Samples

    @property
    def inputs(self) -> Samples:
        """Unlabelled inputs to adapt to: the training ones, or all if every row is for the test."""
        return (self.train if len(self.train) else self.test).unlabelled()


@dataclass(frozen=True)
class Site:
    """One client's data; persistent, while :class:`fedshift.client.Client` lives for a visit."""

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
        """The same with all samples in a device's memory, each store once."""
        if device == "cpu":
            return self
        moved: dict[int, Tensor] = {}

        def tensor(held: Tensor) -> Tensor:
            return moved.setdefault(id(held), held.to(device))

        def splits(held: Splits) -> Splits:
            parts = (held.train, held.val, held.test)
            return Splits(
                *(replace(s, x=tensor(s.x), y=tensor(s.y), rows=tensor(s.rows)) for s in parts)
            )

        return replace(
            self,
            sites={k: replace(site, data=splits(site.data)) for k, site in self.sites.items()},
            domains={k: splits(held) for k, held in self.domains.items()},
            unseen=splits(self.unseen) if self.unseen else None,
        )


def federate(scenario: Scenario, seed: int) -> Federation:
    """Load the data and deal it out to the sites; deterministic from (scenario, seed)."""
    stores, codes = split_domains(scenario, seed)
    domains = {name: whole(stores[name], codes[name], scenario.pixels) for name in stores}
    trained = {name: stores[name] for name in scenario.domains}
    shares = deal(scenario.partition, trained, codes, seed)
    first = next(iter(stores.values()))
    return Federation(
        {share.client: site(share, domains) for share in shares},
        {name: domains[name] for name in scenario.domains},
        domains[scenario.unseen] if scenario.unseen else None,
        first.classes,
        first.shape,
    )


def holdings(scenario: Scenario, seed: int) -> Table:
    """How many training rows of each domain and class each client holds."""
    stores, codes = split_domains(scenario, seed)
    trained = {name: stores[name] for name in scenario.domains}
    return table(deal(scenario.partition, trained, codes, seed), trained)


def split_domains(scenario: Scenario, seed: int) -> tuple[dict[str, Domain], dict[str, Tensor]]:
    """The scenario's domains, the unseen one last, and the split code of each of their rows."""
    stores = load(scenario.data, options_of(scenario))
    rules = dict.fromkeys(scenario.domains, scenario.split)
    if scenario.unseen:
        rules[scenario.unseen] = scenario.unseen_split or scenario.split
    for name in rules:
        if name not in stores:
            raise UnknownNameError.of(f"domain of {scenario.data!r}", name, stores)
    codes = {name: apply_split(rule, stores[name], seed) for name, rule in rules.items()}
    if scenario.partition.same_rows:
        codes |= dict.fromkeys(scenario.domains, codes[scenario.domains[0]])
    return {name: stores[name] for name in rules}, codes


def datasets() -> list[str]:
    """Names of all datasets, your own ones included, which may have grown since we looked."""
    own_datasets()
    return list(DATASETS.entries())


_LOADED: dict[tuple[str, str], Mapping[str, Domain]] = {}  # by dataset and options


def load(dataset: str, options: str = "{}") -> Mapping[str, Domain]:
    """The stored domains of a dataset, once per process; ``options`` is JSON."""
    if (dataset, options) in _LOADED:
        return _LOADED[dataset, options]
    datasets()
    entry = DATASETS.get(dataset)
    given = json.loads(options)
    for key in given:
        if key not in entry.options:
            raise UnknownNameError.of(f"option of dataset {dataset!r}", key, entry.options)
    _LOADED[dataset, options] = entry.build(**given)
    return _LOADED[dataset, options]


def adopt(dataset: str, options: str, stores: Mapping[str, Domain]) -> None:
    """Use domains that are in memory already in place of loading them."""
    _LOADED[dataset, options] = stores


def options_of(scenario: Scenario) -> str:
    """The data's options as :func:`load` takes them."""
    return json.dumps(scenario.data_options, sort_keys=True)


def stored(scenario: Scenario) -> dict[str, Domain]:
    """The domains that the scenario uses, whole."""
    stores = load(scenario.data, options_of(scenario))
    names = [*scenario.domains, *([scenario.unseen] if scenario.unseen else [])]
    return {name: stores[name] for name in names}


def public_samples(scenario: Scenario, shape: tuple[int, ...]) -> Samples:
    """Every input of the scenario's public data set, without labels, in the clients' shape."""
    assert scenario.public is not None
    stores = load(scenario.public)
    first = next(iter(stores.values()))
    if first.shape != shape:
        raise DataError(
            f"public set {scenario.public!r} has inputs of shape {first.shape}, the clients of "
            f"{shape}; take one of the same shape"
        )
    inputs = [Samples(d.x, d.y, torch.arange(len(d.y)), scenario.pixels) for d in stores.values()]
    return union(inputs).unlabelled()


def whole(domain: Domain, codes: Tensor, pixels: Pixels) -> Splits:
    """All three splits of a domain."""
    rows = [(codes == code).nonzero().flatten() for code in (TRAIN, VAL, TEST)]
    return Splits(*(Samples(domain.x, domain.y, part, pixels) for part in rows))


def site(share: Share, domains: Mapping[str, Splits]) -> Site:
    """A client with its training rows, scored on the whole test sets of the domains it holds."""
    held = [replace(domains[name].train, rows=rows) for name, rows in share.rows.items()]
    val, test = (
        union([getattr(domains[name], split) for name in share.rows]) for split in ("val", "test")
    )
    return Site(share.client, share.domain, Splits(union(held), val, test))
