from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from fedshift.base.errors import ConfigError, DataError
from fedshift.base.seeds import generator
from fedshift.data.dealing.holdings import count_holdings
from fedshift.data.dealing.label_skew import Dirichlet, Pathological, SequentialDirichlet
from fedshift.data.dealing.partitions import (
    F2DC,
    ClassHalves,
    Heterogeneity,
    Partition,
    PerDomain,
    Pooled,
    deal,
)
from fedshift.data.samples import Domain
from fedshift.report import optional
from fedshift.report.figures import partition as plot
from fedshift.report.partition import render_table

seeds = st.integers(0, 9)


def make(name: str, labels, classes: int = 4, held_out: int = 0) -> Domain:
    """A domain whose last ``held_out`` rows are not for training."""
    y = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
    split = torch.zeros(len(y), dtype=torch.uint8)
    split[len(y) - held_out :] = 2
    return Domain(name, torch.zeros(len(y), 1), y, split, tuple(map(str, range(classes))))


def world(*sizes: int, classes: int = 4, held_out: int = 0) -> dict[str, Domain]:
    """Domains a, b, ... of random labels; the last rows of each are not for training."""
    return {
        name: make(name, np.random.default_rng(n).integers(0, classes, n), classes, held_out)
        for name, n in zip("abcdef", sizes, strict=False)
    }


def dealt(plan, domains, seed=0):
    return deal(plan, domains, {name: d.split for name, d in domains.items()}, seed)


def held(shares) -> list[tuple[str, int]]:
    return [(name, r) for s in shares for name, rows in s.rows.items() for r in rows.tolist()]


def trained(domains) -> list[tuple[str, int]]:
    return [(name, r) for name, d in domains.items() for r in d.rows(0).tolist()]


def labels(share, domains) -> np.ndarray:
    return torch.cat([domains[name].y[rows] for name, rows in share.rows.items()]).numpy()


plans = st.one_of(
    st.builds(PerDomain, clients_per_domain=st.integers(1, 4)),
    st.builds(Pooled, clients_per_domain=st.integers(1, 4)),
    st.builds(Heterogeneity, clients=st.integers(1, 7), lam=st.floats(0, 1)),
    st.builds(
        Dirichlet,
        clients=st.integers(1, 5),
        alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
        min_size=st.integers(1, 3),
        within=st.sampled_from(["domain", "union"]),
    ),
    st.builds(
        SequentialDirichlet,
        clients=st.integers(1, 9),
        concentration=st.sampled_from([1e-3, 0.1, 10.0]),
        uniform_prior=st.booleans(),
        within=st.sampled_from(["domain", "union"]),
    ),
    st.builds(Pathological, clients=st.integers(2, 5), within=st.sampled_from(["domain", "union"])),
    st.just(ClassHalves()),
)


@given(plans, st.tuples(*[st.integers(25, 60)] * 3), seeds)
def test_every_training_row_is_dealt_once_and_no_other_row(plan, sizes, seed):
    domains = world(*sizes, held_out=5)
    shares = dealt(plan, domains, seed)
    assert sorted(held(shares)) == trained(domains)
    assert min(map(len, shares)) > 0
    assert len({s.client for s in shares}) == len(shares)


@given(plans, seeds)
def test_the_seed_alone_decides(plan, seed):
    domains = world(40, 30, 50)
    first, again, other = (dealt(plan, domains, s) for s in (seed, seed, seed + 1))
    assert [s.client for s in first] == [s.client for s in again]
    assert held(first) == held(again)
    if plan.kind not in ("class-halves", "pooled"):  # one draws nothing, one holds everything
        assert len(first) == len(other)
        if len(first) > 3:
            assert held(first) != held(other)


@given(plans)
def test_a_share_names_its_domain(plan):
    for share in dealt(plan, world(40, 30, 50)):
        if plan.kind == "pooled":
            assert (share.client, share.domain) == ("pooled", "pooled")
        else:
            assert share.domain == (next(iter(share.rows)) if len(share.rows) == 1 else "mixed")


@given(plans)
def test_a_plan_survives_json_and_refuses_unknown_keys(plan):
    adapter = TypeAdapter(Partition)
    assert adapter.validate_json(plan.model_dump_json()) == plan
    with pytest.raises(ValidationError):
        adapter.validate_python({**plan.model_dump(), "colour": 1})


def stratified_shares(domain: Domain, clients: int, seed: int) -> list[torch.Tensor]:
    """The partition of version 0.1 as it was: published numbers hang on these draws."""
    rows = domain.rows(0)
    rows = rows[torch.randperm(len(rows), generator=generator(seed, "partition", domain.name))]
    y = domain.y[rows]
    rank = torch.zeros_like(rows)
    for label in y.unique():
        rank[y == label] = torch.arange(int((y == label).sum()))
    return list(rows[rank.argsort(stable=True)].tensor_split(clients))


@given(st.integers(1, 60), st.integers(1, 7), st.sampled_from([None, 1, 3]), seeds)
def test_per_domain_is_what_it_always_was(n, clients, cap, seed):
    domains = world(n, held_out=n // 3)
    want = [rows[:cap] for rows in stratified_shares(domains["a"], clients, seed)]
    plan = PerDomain(clients_per_domain=clients, samples_per_client=cap)
    if min(map(len, want)) < (cap or 1):
        with pytest.raises(DataError):
            dealt(plan, domains, seed)
        return
    shares = dealt(plan, domains, seed)
    assert [s.client for s in shares] == [f"a-{i}" for i in range(clients)]
    assert all(torch.equal(s.rows["a"], w) for s, w in zip(shares, want, strict=True))


def test_pooled_holds_what_the_clients_hold_in_their_order():
    domains, how = world(40, 30), {"clients_per_domain": 2, "samples_per_client": 5}
    apart, (pooled,) = dealt(PerDomain(**how), domains, 3), dealt(Pooled(**how), domains, 3)
    assert held([pooled]) == held(apart)
    assert len(pooled) == 20


def test_clients_per_domain_may_differ_and_must_name_the_domains():
    domains = world(40, 30)
    shares = dealt(PerDomain(clients_per_domain={"b": 3, "a": 1}), domains)
    assert [s.client for s in shares] == ["a-0", "b-0", "b-1", "b-2"]
    with pytest.raises(ConfigError, match=r"names a; the domains trained on are a, b"):
        dealt(PerDomain(clients_per_domain={"a": 1}), domains)


F2DC_LAYOUTS = {  # Digits M U SV SY, Office C A W D, PACS P AP Ct Sk: percent, clients, sizes
    "digits": (1, (3, 6, 6, 5), (60000, 7291, 73257, 25000), (600, 72, 732, 250)),
    "office": (20, (3, 2, 2, 3), (899, 767, 236, 126), (179, 153, 47, 25)),
    "pacs": (30, (2, 3, 2, 3), (1336, 1639, 1876, 3144), (400, 491, 562, 943)),
}


@pytest.mark.parametrize("name", F2DC_LAYOUTS)
def test_f2dc_has_the_papers_clients_and_percentages(name):
    percent, clients, sizes, want = F2DC_LAYOUTS[name]
    domains = world(*sizes, classes=10)
    plan = F2DC(clients=dict(zip("abcd", clients, strict=True)), percent=percent)
    shares = dealt(plan, domains)
    assert len(shares) == sum(clients) == {"digits": 20}.get(name, 10)
    for domain, count, size in zip("abcd", clients, want, strict=True):
        assert [len(s) for s in shares if s.domain == domain] == [size] * count
    assert all(len(np.unique(labels(s, domains))) == 10 for s in shares)


@given(st.integers(20, 80), st.integers(1, 4), st.sampled_from([5.0, 12.5, 25.0]), seeds)
def test_f2dc_without_the_fix_is_disjoint_and_of_the_stated_size(n, clients, percent, seed):
    domains = world(n, n + 7, held_out=3)
    plan = F2DC(clients={"a": clients, "b": 1}, percent=percent, fix_missing_classes=False)
    size = int((n - 3) * percent / 100)
    if not size:
        with pytest.raises(DataError, match="would hold no training sample"):
            dealt(plan, domains, seed)
        return
    shares = dealt(plan, domains, seed)
    rows = held(shares)
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(trained(domains))
    assert [len(s) for s in shares] == [size] * clients + [int((n + 4) * percent / 100)]


def test_the_f2dc_fix_brings_every_class_to_every_client_and_keeps_the_size():
    domains = {"a": make("a", [0] * 50 + [1] * 48 + [2] * 2)}
    plan = {"clients": {"a": 4}, "percent": 10}
    bare = dealt(F2DC(**plan, fix_missing_classes=False), domains)
    assert any(2 not in labels(s, domains) for s in bare)
    fixed = dealt(F2DC(**plan), domains)
    assert [len(s) for s in fixed] == [10] * 4
    assert all(set(labels(s, domains)) == {0, 1, 2} for s in fixed)
    rows = held(fixed)
    assert len(set(rows)) == len(rows) - 2  # four clients, two rows of class 2: two are shared


def test_the_f2dc_fix_prefers_rows_that_nobody_holds():
    domains = {"a": make("a", [0] * 80 + [1] * 20)}
    for seed in range(10):
        rows = held(dealt(F2DC(clients={"a": 3}, percent=4), domains, seed))
        assert len(set(rows)) == len(rows) == 12


def test_a_client_smaller_than_the_classes_gets_one_row_of_each_that_fits():
    domains = {"a": make("a", np.arange(40) % 4)}
    for percent, want in ((5, 2), (10, 4)):
        for seed in range(5):
            for share in dealt(F2DC(clients={"a": 2}, percent=percent), domains, seed):
                assert len(set(labels(share, domains))) == len(share) == want


@given(seeds, st.integers(4, 12))
def test_a_random_allocation_keeps_the_total_and_gives_each_domain_one(seed, total):
    domains = world(100, 90, 80, 70)
    plan = F2DC(clients={"a": total - 3, "b": 1, "c": 1, "d": 1}, percent=30, allocation="random")
    shares = dealt(plan, domains, seed)
    counts = [sum(s.domain == d for s in shares) for d in "abcd"]
    assert sum(counts) == total
    assert min(counts) >= 1
    assert max(counts) <= 3  # 30 % fits three times


def test_random_allocations_differ_and_say_when_they_cannot_fit():
    domains = world(100, 90)
    plan = F2DC(clients={"a": 3, "b": 3}, percent=10, allocation="random")
    found = {sum(s.domain == "a" for s in dealt(plan, domains, seed)) for seed in range(30)}
    assert found >= {2, 3, 4}
    with pytest.raises(DataError, match="room for 6 at this percentage"):
        dealt(F2DC(clients={"a": 5, "b": 2}, percent=30, allocation="random"), domains)
    with pytest.raises(DataError, match=r"4 clients of 30 % need 120; lower percent or clients"):
        dealt(F2DC(clients={"a": 4, "b": 2}, percent=30), domains)


def domain_counts(shares, domains) -> np.ndarray:
    return np.array([[len(s.rows.get(name, ())) for name in domains] for s in shares])


@given(st.integers(1, 9), st.floats(0, 1), st.tuples(*[st.integers(20, 90)] * 3), seeds)
def test_heterogeneity_follows_its_formula(clients, lam, sizes, seed):
    domains = world(*sizes)
    counts = domain_counts(dealt(Heterogeneity(clients=clients, lam=lam), domains, seed), domains)
    pure = domain_counts(dealt(Heterogeneity(clients=clients, lam=0), domains, seed), domains)
    want = lam * np.array(sizes) / clients + (1 - lam) * pure
    np.testing.assert_allclose(counts, want, atol=2.01)  # two roundings, one of them of lam = 0
    if clients >= 3:
        assert ((pure > 0).sum(1) == 1).all()
    else:
        assert ((pure > 0).sum(0) == 1).all()


def test_heterogeneity_one_is_iid_and_zero_houses_clients_where_the_rows_are():
    domains = world(100, 200, 300)
    iid = domain_counts(dealt(Heterogeneity(clients=10, lam=1), domains), domains)
    assert (iid == [10, 20, 30]).all()
    pure = domain_counts(dealt(Heterogeneity(clients=6, lam=0), domains), domains)
    assert (pure > 0).sum(0).tolist() == [1, 2, 3]
    assert (pure.max(1) == 100).all()
    few = domain_counts(dealt(Heterogeneity(clients=2, lam=0), domains), domains)
    assert few.tolist() == [[0, 0, 300], [100, 200, 0]]


@given(st.integers(1, 8), st.sampled_from([1e-3, 0.05, 1.0]), st.integers(1, 6), seeds)
def test_a_dirichlet_split_ends_with_the_minimum_size(clients, alpha, least, seed):
    plan = Dirichlet(clients=clients, alpha=alpha, min_size=least, within="union")
    domains = world(24, 24)
    shares = dealt(plan, domains, seed)
    assert min(map(len, shares)) >= least
    assert sorted(held(shares)) == trained(domains)


def mean_largest_class(plan, domains, repeats: int) -> float:
    """Largest class share of the first client, over seeds."""
    first = (labels(dealt(plan, domains, seed)[0], domains) for seed in range(repeats))
    return float(np.mean([np.bincount(y).max() / len(y) for y in first]))


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_a_clients_part_of_a_class_has_the_variance_of_a_dirichlet(alpha):
    """Var of one entry of Dir(alpha, ..., alpha) over N: (1/N)(1 - 1/N) / (N alpha + 1)."""
    domains = {"a": make("a", np.arange(800) % 4)}
    plan = Dirichlet(clients=5, alpha=alpha, min_size=1)
    counts = [count_holdings(dealt(plan, domains, seed), domains).counts for seed in range(120)]
    parts = np.stack(counts) / 200
    assert parts.mean() == pytest.approx(1 / 5)
    assert parts.var() == pytest.approx(0.16 / (5 * alpha + 1), rel=0.15)


def test_sequential_dirichlet_is_far_more_skewed_than_the_usual_one():
    """94 % against 66 % for ten classes: simulations of Dir(0.01) and Dir(0.1), not of our code."""
    domains = {"a": make("a", np.arange(2000) % 10, classes=10)}
    usual, harsh = (
        mean_largest_class(SequentialDirichlet(clients=10, uniform_prior=u), domains, 300)
        for u in (True, False)
    )
    assert harsh == pytest.approx(0.94, abs=0.02)
    assert usual == pytest.approx(0.66, abs=0.03)


@given(st.integers(1, 40), seeds, st.booleans())
def test_sequential_dirichlet_ends_with_even_sizes_for_any_client_count(clients, seed, uniform):
    plan = SequentialDirichlet(clients=clients, uniform_prior=uniform, concentration=1e-3)
    sizes = [len(s) for s in dealt(plan, world(40), seed)]
    assert sum(sizes) == 40
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(2, 9), st.integers(2, 4), seeds)
def test_pathological_clients_hold_exactly_k_classes_evenly(clients, k, seed):
    domains = {"a": make("a", np.arange(80) % 4)}
    shares = dealt(Pathological(clients=clients, classes_per_client=k), domains, seed)
    counts = count_holdings(shares, domains).counts[:, 0]
    assert ((counts > 0).sum(1) == k).all()
    holders = (counts > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for of_class in counts.T:
        some = of_class[of_class > 0]
        assert some.max() - some.min() <= 1


def test_pathological_says_when_classes_do_not_fit():
    for clients, k in ((1, 2), (3, 5)):
        with pytest.raises(DataError, match=f"{clients} clients of {k} classes cannot cover the 4"):
            dealt(Pathological(clients=clients, classes_per_client=k), world(40))


def test_class_halves_of_pacs_are_0_to_3_and_4_to_6():
    domains = world(200, 190, 180, 170, classes=7)
    shares = dealt(ClassHalves(), domains)
    assert [s.client for s in shares] == [f"{d}-{i}" for d in "abcd" for i in (0, 1)]
    for share in shares:
        want = {0, 1, 2, 3} if share.client.endswith("0") else {4, 5, 6}
        assert set(labels(share, domains)) == want


@pytest.mark.parametrize(
    ("plan", "remedy"),
    [
        (PerDomain(clients_per_domain=41), "fewer clients"),
        (Heterogeneity(clients=41, lam=0), "fewer clients"),
        (SequentialDirichlet(clients=41), "fewer clients"),
        (Dirichlet(clients=5), "lower min_size or clients"),
        (PerDomain(clients_per_domain=2, samples_per_client=30), "lower samples_per_client"),
    ],
    ids=lambda p: getattr(p, "kind", ""),
)
def test_no_client_is_ever_empty(plan, remedy):
    with pytest.raises(DataError, match=remedy):
        dealt(plan, world(40))
    with pytest.raises(DataError, match="leave out the domain that lacks"):
        dealt(ClassHalves(), {"a": make("a", [0, 0, 1])})


def test_a_domain_without_training_rows_or_split_is_named():
    domains = world(40)
    with pytest.raises(DataError, match="'a' has no training sample"):
        deal(PerDomain(), domains, {"a": torch.full((40,), 2, dtype=torch.uint8)}, 0)
    with pytest.raises(DataError, match="40 samples, but no split codes"):
        deal(PerDomain(), domains, {}, 0)
    with pytest.raises(DataError, match="40 samples, but 3 split codes"):
        deal(PerDomain(), domains, {"a": torch.zeros(3, dtype=torch.uint8)}, 0)


def test_the_table_counts_clients_domains_and_classes():
    domains = {"a": make("a", [0, 0, 1, 2]), "b": make("b", [3, 3, 3])}
    made = count_holdings(dealt(Pooled(), domains), domains)
    assert made.counts.tolist() == [[[2, 1, 1, 0], [0, 0, 0, 3]]]
    assert made.mixed
    apart = count_holdings(dealt(PerDomain(), domains), domains)
    assert apart.counts.tolist() == [[[2, 1, 1, 0], [0] * 4], [[0] * 4, [0, 0, 0, 3]]]
    assert not apart.mixed


def text(shown) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render_table(shown))
    lines = [line.split() for line in capture.get().splitlines()]
    rule = next(i for i, words in enumerate(lines) if words and set(words[0]) == {"─"})
    return [words for words in lines[rule + 1 :] if words]


def test_the_rendered_table_names_each_client_once():
    domains = {"a": make("a", [0, 0, 1, 2]), "b": make("b", [3, 3, 3])}
    lines = text(count_holdings(dealt(Pooled(), domains), domains))
    assert lines == [
        ["pooled", "a", "2", "1", "1", "-", "4"],
        ["b", "-", "-", "-", "3", "3"],
    ]


def test_many_classes_are_summed_up():
    domains = {"a": make("a", [17] * 3 + [2], classes=20)}
    assert text(count_holdings(dealt(PerDomain(), domains), domains)) == [
        ["a-0", "a", "2", "17", "(75%)", "4"]
    ]


@pytest.mark.parametrize("classes", [7, 15, 40])
@pytest.mark.parametrize(
    "plan", [Heterogeneity(clients=5, lam=0.5), PerDomain()], ids=["mix", "one"]
)
def test_the_bars_of_a_client_add_up_to_its_rows(classes, plan, tmp_path):
    pytest.importorskip("matplotlib")
    domains = world(60, 80, classes=classes)
    shares = dealt(plan, domains)
    figure = plot(count_holdings(shares, domains))
    axes = figure.axes[0]
    ends = np.zeros(len(shares))
    total = np.zeros(len(shares))
    for bar in axes.patches:
        client = round(bar.get_y() + 0.4)
        total[client] += bar.get_width()
        ends[client] = max(ends[client], bar.get_x() + bar.get_width())
    assert total.tolist() == ends.tolist() == [len(s) for s in shares]
    assert [t.get_text() for t in axes.get_yticklabels()] == [s.client for s in shares]
    figure.savefig(tmp_path / "bars.png", dpi=30)


def test_without_matplotlib_the_figure_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda module: False)
    with pytest.raises(ConfigError, match=r"fedshift\[report\]"):
        optional.figures()


def looks(n: int, angles: int = 3) -> dict[str, Domain]:
    """Rotations of the same rows: equal labels in equal order."""
    y = torch.arange(n) % 5
    split = torch.zeros(n, dtype=torch.uint8)
    x = torch.zeros(n, 1, 1, 3, dtype=torch.uint8)
    return {f"deg{a}": Domain(f"deg{a}", x, y, split, tuple("abcde")) for a in range(angles)}


@given(st.integers(1, 12), st.integers(0, 5))
def test_aligned_looks_never_show_a_row_twice(clients, seed):
    domains = looks(60)
    plan = SequentialDirichlet(clients=clients, within="aligned", mixing=1.0)
    shares = deal(plan, domains, {k: d.split for k, d in domains.items()}, seed)
    rows = [r for share in shares for part in share.rows.values() for r in part.tolist()]
    assert sorted(rows) == list(range(60))


def test_without_mixing_each_client_has_its_own_look():
    domains = looks(60)
    plan = SequentialDirichlet(clients=3, within="aligned")
    shares = deal(plan, domains, {k: d.split for k, d in domains.items()}, 0)
    assert [list(share.rows) for share in shares] == [["deg0"], ["deg1"], ["deg2"]]


def test_looks_of_other_rows_are_refused():
    domains = looks(60) | {"other": looks(30)["deg0"]}
    plan = SequentialDirichlet(clients=3, within="aligned")
    with pytest.raises(DataError, match="do not hold the same rows"):
        deal(plan, domains, {k: d.split for k, d in domains.items()}, 0)
