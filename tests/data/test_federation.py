from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.base.errors import DataError, UnknownNameError
from fedshift.data.dealing.partitions import PerDomain, Pooled
from fedshift.data.samples import Domain, Samples, as_input, split_rows, union
from fedshift.data.store import read_domain, write_domain
from fedshift.engine.federation import federate
from fedshift.testing import tiny_scenario


def domain(n: int, classes: int = 4) -> Domain:
    y = torch.arange(n) % classes
    x = torch.arange(n * 12, dtype=torch.uint8).reshape(n, 2, 2, 3)
    return Domain("d", x, y, torch.zeros(n, dtype=torch.uint8), tuple("abcd"))


def test_the_seed_decides_who_holds_what_and_nothing_else_does():
    first, again = (federate(tiny_scenario(), 3).sites for _ in range(2))
    other = federate(tiny_scenario(), 4).sites
    for client, site in first.items():
        assert torch.equal(site.data.train.rows, again[client].data.train.rows)
    assert any(not torch.equal(first[c].data.train.rows, other[c].data.train.rows) for c in first)


def test_clients_of_a_domain_are_scored_on_its_whole_test_set():
    made = federate(tiny_scenario(), 0)
    for site in made.sites.values():
        assert torch.equal(site.data.test.rows, made.domains[site.domain].test.rows)
        assert len(site.data.test) == 16


def test_no_training_sample_is_ever_tested_on():
    made = federate(tiny_scenario(), 0)
    for site in made.sites.values():
        held = set(site.data.train.rows.tolist())
        assert not held & set(site.data.test.rows.tolist())
        assert not held & set(site.data.val.rows.tolist())


def test_the_pooled_site_holds_what_the_sites_hold_together():
    plan = PerDomain(clients_per_domain=2, samples_per_client=5)
    apart = federate(tiny_scenario(partition=plan), 0).sites
    pooled = federate(tiny_scenario(partition=Pooled(**plan.model_dump(exclude={"kind"}))), 0).sites
    (site,) = pooled.values()
    want = [bytes(a) for s in apart.values() for a in s.data.train.x[s.data.train.rows].numpy()]
    have = [bytes(a) for a in site.data.train.x.numpy()]
    assert sorted(want) == sorted(have)
    assert len(site.data.test) == 32


def test_samples_are_normalised_on_the_batch():
    store = domain(6)
    x, y = Samples(store.x, store.y, torch.tensor([5, 2, 0])).take(torch.tensor([0, 2]))
    want = (store.x.numpy()[[5, 0]].transpose(0, 3, 1, 2) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(x.numpy(), want, atol=1e-6)
    assert y.tolist() == [5 % 4, 0]
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("pixels", "mean", "std"),
    [
        ("unit", (0, 0, 0), (1, 1, 1)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("inception", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("cifar100", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    ],
)
def test_pixels_are_scaled_as_the_scenario_says_after_they_are_changed(pixels, mean, std):
    store = domain(4)
    unit = store.x.numpy().transpose(0, 3, 1, 2) / 255
    mean, std = (np.array(v)[:, None, None] for v in (mean, std))
    plain = as_input(store.x, pixels)
    np.testing.assert_allclose(plain.numpy(), (unit - mean) / std, atol=1e-5)
    changed = as_input(store.x, pixels, lambda x: 1 - x)
    np.testing.assert_allclose(changed.numpy(), (1 - unit - mean) / std, atol=1e-5)


def test_vectors_pass_as_they_are():
    vectors = torch.randn(3, 5, dtype=torch.float16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(as_input(vectors), vectors.float())


def test_unlabelled_samples_carry_no_label():
    store = domain(6)
    bare = Samples(store.x, store.y, torch.arange(6)).unlabelled()
    assert bare.labels.tolist() == [-1] * 6
    assert torch.equal(bare.take(torch.arange(6))[0], as_input(store.x))


def test_union_keeps_pairs_together():
    a, b = domain(6), domain(9)
    both = union([Samples(d.x, d.y, torch.tensor([1, 3])) for d in (a, b)])
    assert both.labels.tolist() == [1, 3, 1, 3]
    assert torch.equal(both.x[:2], a.x[[1, 3]])


@given(st.integers(1, 40), st.integers(1, 9))
def test_an_epoch_visits_every_row_once_and_leaves_no_single_one(n: int, size: int):
    chunks = split_rows(torch.randperm(n, generator=torch.Generator().manual_seed(n)), size)
    assert sorted(torch.cat(chunks).tolist()) == list(range(n))
    if size > 1 and n > 1:
        assert min(len(c) for c in chunks) > 1
        assert max(len(c) for c in chunks) <= size + 1


def test_a_domain_survives_the_store_and_damage_shows(tmp_path):
    made = domain(8)
    write_domain(tmp_path / "d", made)
    back = read_domain(tmp_path / "d")
    assert torch.equal(back.x, made.x)
    assert torch.equal(back.y, made.y)
    assert (back.name, back.classes, back.shape) == ("d", tuple("abcd"), (3, 2, 2))
    blob = bytearray((tmp_path / "d" / "y.npy").read_bytes())
    blob[-1] ^= 1
    (tmp_path / "d" / "y.npy").write_bytes(bytes(blob))
    with pytest.raises(DataError, match=r"y\.npy is damaged"):
        read_domain(tmp_path / "d")


def test_too_few_samples_say_so():
    plan = PerDomain(clients_per_domain=2, samples_per_client=12)
    with pytest.raises(DataError, match="domain 'dark' has 22 training samples; 2 clients of 12"):
        federate(tiny_scenario(partition=plan), 0)


def test_an_unknown_domain_gives_the_nearest_names():
    with pytest.raises(UnknownNameError, match="did you mean dark"):
        federate(tiny_scenario(domains=("dork", "bright")), 0)
