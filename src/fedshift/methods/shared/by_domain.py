"""Batches that hold samples of several domains: their rows, risks and pairs, for DG penalties.

Methods of centralised domain generalisation compare the domains of one batch. At a client they work
where it holds several (the resource ``sample_domains``); a batch of one domain gives them nothing
to compare, and they add nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import ceil

import torch
from torch import Tensor

from fedshift import Batch, Client, ConfigError, Step


def rows_by_domain(batch: Batch, least: int = 1) -> list[Tensor]:
    """Positions of the samples of each domain in the batch that has at least ``least`` of them."""
    if batch.domains is None or len(batch.domains) != len(batch.x):
        found = "none" if batch.domains is None else str(len(batch.domains))
        raise ConfigError(
            f"a batch of {len(batch.x)} samples has the domains of {found}; a part that adds "
            "samples to a batch cannot be used with one that compares domains; leave one out"
        )
    rows = [(batch.domains == d).nonzero().flatten() for d in batch.domains.unique()]
    return [own for own in rows if len(own) >= least]


def outputs_by_domain(step: Step) -> list[tuple[Tensor, Tensor]]:
    """Outputs (n_e, K) and targets (n_e, ...) of each domain in the batch."""
    return [(step.out.logits[rows], step.y[rows]) for rows in rows_by_domain(step.batch)]


def pair_mean(groups: list[Tensor], gap: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Mean of ``gap`` over all pairs of domains, each given by its features (n_e, D)."""
    return torch.stack([gap(a, b) for a, b in combinations(groups, 2)]).mean()


def annealed(client: Client, weight: float, warmup: float) -> float:
    """The weight of a penalty: at most 1 in the first ``warmup`` of the rounds, then in full."""
    early = ceil(round(warmup * client.scenario.rounds, 9))  # 0.1 of 30 rounds are 3
    return min(weight, 1.0) if client.round <= early else weight
