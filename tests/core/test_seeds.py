from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.base import seeds
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.registry import build
from fedshift.methods.mixup import Mixup
from fedshift.testing import play, start


@given(st.lists(st.integers() | st.text(max_size=4), min_size=1, max_size=4, unique_by=str))
def test_every_list_of_names_has_a_seed_of_its_own(names):
    assert seeds.derive(*names) == seeds.derive(*names)
    assert 0 <= seeds.derive(*names) < 2**63
    assert seeds.derive(*names) != seeds.derive(*names, "more")
    if len(names) > 1:
        assert seeds.derive(*names) != seeds.derive(*names[::-1])


def test_names_are_not_run_together():
    assert seeds.derive("ab", "c") != seeds.derive("a", "bc")
    assert seeds.derive(1, 12) != seeds.derive(11, 2)


def test_generators_repeat_by_name_and_do_not_disturb_each_other():
    first = torch.rand(4, generator=seeds.generator(0, "a"))
    other = seeds.generator(0, "b")
    torch.rand(100, generator=other)
    assert torch.equal(first, torch.rand(4, generator=seeds.generator(0, "a")))
    assert not torch.equal(first, torch.rand(4, generator=seeds.generator(0, "b")))
    assert (seeds.numpy(0, "a").random(4) == seeds.numpy(0, "a").random(4)).all()


def test_generators_of_other_names_are_uncorrelated():
    draws = np.stack([torch.rand(2000, generator=seeds.generator(0, i)).numpy() for i in range(6)])
    off = np.corrcoef(draws)[~np.eye(6, dtype=bool)]
    assert np.abs(off).max() < 4 / np.sqrt(2000)  # four standard errors


def test_a_fork_leaves_the_global_generator_as_it_was():
    before = torch.random.get_rng_state()
    with seeds.fork(0, "init"):
        first = torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    with seeds.fork(0, "init"):
        assert torch.equal(torch.rand(3), first)


@dataclass(frozen=True)
class Gambler(Part):
    """Draws from its own generators, and from torch's, in every hook; returns nothing."""

    def build(self, net):
        torch.rand(5)

    def batch(self, client, batch):
        torch.rand(7, generator=client.generator(self.name))
        client.numpy(self.name).random(3)
        return batch

    def begin(self, client):
        torch.rand(3, generator=client.generator(self.name))

    def merge(self, server, updates):
        torch.rand(3, generator=server.generator(self.name))
        torch.rand(3)


@dataclass(frozen=True)
class Witness(Part):
    """Notes the first draw of its own generator."""

    draws: ClassVar[list] = []

    def begin(self, client):
        draw = torch.rand(2, generator=client.generator(self.name))
        self.draws.append((client.id, client.round, draw.tolist()))


def test_a_further_part_changes_nobody_elses_draws(same_bits):
    plain = play(start(Method((Mixup(),))), 2)
    joined = play(start(Method((Gambler(), Mixup()))), 2)
    same_bits(plain.server.shared, joined.server.shared)


def test_a_further_part_does_not_change_the_initialisation(same_bits):
    plain, projected = start("fedavg"), start(build("moon", projector=True))
    kept = {k: v for k, v in projected.server.initial.items() if k in plain.server.initial}
    assert len(kept) < len(projected.server.initial)
    same_bits(plain.server.initial, kept)
    same_bits(plain.server.initial, start(Method((Gambler(),))).server.initial)


def test_two_parts_that_build_do_not_change_each_others_weights():
    alone = start(build("moon", projector=True)).server.initial
    after = start(Method((Gambler(),)).plus(*build("moon", projector=True).parts)).server.initial
    assert all(torch.equal(alone[k], after[k]) for k in alone)


def test_every_visit_has_a_generator_of_its_own():
    Witness.draws.clear()
    play(start(Method((Witness(),))), 2)
    play(start(Method((Witness(),)), seed=1), 2)
    values = [tuple(v) for _, _, v in Witness.draws]
    assert len(values) == len(set(values)) == 2 * 2 * 4  # seeds x rounds x clients
    first = Witness.draws[:8]
    play(start(Method((Witness(),))), 2)
    assert Witness.draws[16:] == first


def test_the_method_does_not_decide_the_initialisation_the_partition_or_the_cohorts(same_bits):
    a, b = start("fedavg", clients_per_round=2), start("scaffold", clients_per_round=2)
    same_bits(a.server.initial, b.server.initial)
    for client, site in a.federation.sites.items():
        assert torch.equal(site.data.train.rows, b.federation.sites[client].data.train.rows)
    for session in (play(a), play(b)):
        session.cohorts = [(m.round, m.client) for m in session.transport.seen if m.task == "train"]
    assert a.cohorts == b.cohorts
