"""From a scenario and a seed to sites with data: who holds what, who is scored on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fedshift import seeds
from fedshift.data.samples import Domain, Samples, union
from fedshift.errors import DataError, UnknownNameError
from fedshift.registry import DATASETS
from fedshift.scenario import Scenario


@dataclass(frozen=True)
class Splits:
    """Train, validation and test samples of a site or of a domain."""

    train: Samples
    val: Samples
    test: Samples


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


def federate(scenario: Scenario, seed: int) -> Federation:
    """Load the data and deal it out to the sites; deterministic from (scenario, seed)."""
    stores = load(scenario.data)
    wanted = (*scenario.domains, *([scenario.unseen] if scenario.unseen else []))
    for name in wanted:
        if name not in stores:
            raise UnknownNameError.of(f"domain of {scenario.data!r}", name, stores)
    domains = {name: whole(stores[name]) for name in wanted}
    sites = deal(scenario, {n: stores[n] for n in scenario.domains}, domains, seed)
    first = stores[wanted[0]]
    return Federation(
        sites,
        {n: domains[n] for n in scenario.domains},
        domains[scenario.unseen] if scenario.unseen else None,
        first.classes,
        first.shape,
    )


@cache
def load(dataset: str) -> Mapping[str, Domain]:
    """The stored domains of a dataset, once per process."""
    return DATASETS.get(dataset).build()


def whole(domain: Domain) -> Splits:
    """All three splits of a domain."""
    train, val, test = (Samples(domain.x, domain.y, domain.rows(s)) for s in (0, 1, 2))
    return Splits(train, val, test)


def deal(
    scenario: Scenario, stores: Mapping[str, Domain], whole_domains: Mapping[str, Splits], seed: int
) -> dict[str, Site]:
    """Sites by the scenario's partition; each is scored on its domain's whole test set."""
    plan = scenario.partition
    sites: dict[str, Site] = {}
    for name, store in stores.items():
        rest = whole_domains[name]
        shares = stratified_shares(store, plan.clients_per_domain, seed)
        for i, rows in enumerate(shares):
            held = rows[: plan.samples_per_client]
            if plan.samples_per_client and len(held) < plan.samples_per_client:
                raise DataError(
                    f"domain {name!r} has {len(store.rows(0))} training samples; "
                    f"{plan.clients_per_domain} clients of {plan.samples_per_client} need more; "
                    "lower samples_per_client or clients_per_domain"
                )
            train = Samples(store.x, store.y, held)
            sites[f"{name}-{i}"] = Site(f"{name}-{i}", name, Splits(train, rest.val, rest.test))
    return sites if plan.kind == "per-domain" else {"pooled": pool(sites, whole_domains, scenario)}


def pool(
    sites: Mapping[str, Site], whole_domains: Mapping[str, Splits], scenario: Scenario
) -> Site:
    """One site that holds what all of them hold: the reference that is not federated."""
    train = union([site.data.train for site in sites.values()])
    val, test = (
        union([getattr(whole_domains[name], split) for name in scenario.domains])
        for split in ("val", "test")
    )
    return Site("pooled", "pooled", Splits(train, val, test))


def stratified_shares(domain: Domain, clients: int, seed: int) -> list[Tensor]:
    """Training rows of each client, disjoint, classes as even as they come at every prefix."""
    rows = domain.rows(0)
    generator = seeds.generator(seed, "partition", domain.name)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    labels = domain.y[rows]
    rank = torch.zeros_like(rows)  # how many rows of the same class came before
    for label in labels.unique():
        of_class = labels == label
        rank[of_class] = torch.arange(int(of_class.sum()))
    return list(rows[rank.argsort(stable=True)].tensor_split(clients))
