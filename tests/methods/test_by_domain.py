"""Domains of single samples at a client, and the penalties that compare them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedshift.base.errors import ConfigError, NotAllowedError
from fedshift.core.loop import Batch, Step
from fedshift.core.net import Output
from fedshift.core.objective import objective
from fedshift.core.registry import build
from fedshift.data.dealing.partitions import Heterogeneity, Pooled
from fedshift.data.federation import hide_labels, pooled
from fedshift.engine.federation import federate
from fedshift.methods.coral import moment_gap
from fedshift.methods.fish import without_single_rows
from fedshift.methods.irm import scale_slope
from fedshift.methods.mmd import RATES, kernel_gap
from fedshift.methods.shared.by_domain import annealed, pair_mean, rows_by_domain
from fedshift.testing import begin, play, start, tiny_scenario, worker

METHODS = ("irm", "v-rex", "coral", "mmd", "fish")
MIXED = {"partition": Heterogeneity(clients=4, lam=0.6)}
ALLOWED = {"allow": ("client_val", "domain_ids", "server_unlabelled", "sample_domains")}


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


# the resource


def batches(session, client, method_client):
    site = worker(session)
    found = method_client(session, client)
    return list(site.training._batches(found, site.method.phases(found)[0]))


def test_each_sample_of_a_batch_has_its_own_domain(open_client):
    """Looked up by value: every row of a batch lies in the stored rows of the domain it names."""
    session = start("irm", **MIXED, **ALLOWED)
    made = session.federation
    held = {name: splits.train for name, splits in made.domains.items()}
    rows = {name: s.take(torch.arange(len(s)))[0].flatten(1) for name, s in held.items()}
    seen = set()
    for client in made.sites:
        for batch in batches(session, client, open_client):
            for x, domain in zip(batch.x.flatten(1), batch.domains.tolist(), strict=True):
                name = ("dark", "bright")[domain]
                assert bool((rows[name] == x).all(1).any())
                seen.add((client, name))
    assert len(seen) == 8  # four clients, two domains each


def test_domains_are_kept_when_rows_are_chosen_again():
    site = federate(tiny_scenario(partition=Pooled()), 0).sites["pooled"]
    train = site.data.train
    dark, bright = 22, 13
    assert train.domains_at(torch.arange(len(train))).tolist() == [0] * dark + [1] * bright
    assert train.domains_at(torch.tensor([30, 2, 22, 21])).tolist() == [1, 0, 1, 0]
    few = hide_labels(site, 0.3, 0).data
    for samples in (few.train, few.unlabelled):
        assert samples.domains_at(torch.arange(len(samples))).tolist() == [
            int(row >= dark) for row in samples.rows.tolist()
        ]


def test_domains_move_to_the_device_with_the_samples():
    made = federate(tiny_scenario(partition=Pooled()), 0).to("meta")
    train = made.sites["pooled"].data.train
    assert train.domains.device == train.x.device == torch.device("meta")


def test_sites_that_are_pooled_keep_the_domains_of_their_samples():
    """Of two sites of a domain the samples have the same number, not one per site."""
    made = federate(tiny_scenario(), 0)
    train = pooled(made).sites["pooled"].data.train
    sizes = {name: len(site.data.train) for name, site in made.sites.items()}
    expected = [("dark", "bright").index(c[:-2]) for c, n in sizes.items() for _ in range(n)]
    assert train.domains_at(torch.arange(len(train))).tolist() == expected


def test_a_site_of_one_domain_has_one_number_and_one_that_does_not_know_has_0():
    train = federate(tiny_scenario(), 0).sites["bright-1"].data.train
    assert train.domains_at(torch.arange(3)).tolist() == [1, 1, 1]
    assert train.domains.untyped_storage().nbytes() == 8  # however many rows
    assert replace(train, domains=None).domains_at(torch.arange(3)).tolist() == [0, 0, 0]


def test_methods_that_do_not_ask_get_no_domains(open_client):
    session = start("fedavg", **MIXED, **ALLOWED)
    assert all(b.domains is None for b in batches(session, "client-0", open_client))


def test_mixup_leaves_each_sample_the_domain_of_its_first(open_client):
    plain, mixed = (start(m, **MIXED, **ALLOWED) for m in ("v-rex", "v-rex + mixup"))
    pairs = zip(*(batches(s, "client-1", open_client) for s in (plain, mixed)), strict=True)
    for a, b in pairs:
        assert torch.equal(a.domains, b.domains)
        assert not torch.equal(a.x, b.x)


@pytest.mark.parametrize("method", METHODS)
def test_without_leave_the_method_is_refused(method):
    with pytest.raises(
        NotAllowedError, match=r"which domain each training sample .*sample_domains"
    ):
        start(method)


def test_no_message_holds_the_domains():
    session = play(begin("irm"), 1)
    for client, site in session.federation.sites.items():
        held = site.data.train.domains
        for message in session.transport.seen:
            tensors = [t for section in message.sections() for t in section.values()]
            assert not any(t.shape == held.shape for t in tensors), client


# what all have in common


@pytest.mark.parametrize("method", METHODS)
def test_with_one_domain_at_a_client_it_is_fedavg(method, same):
    plain, other = play(start("fedavg"), 1), play(start(method, **ALLOWED), 1)
    same(plain.server.shared, other.server.shared)


@pytest.mark.parametrize("method", METHODS)
def test_with_several_domains_it_is_not_fedavg(method):
    plain, other = play(start("fedavg", **MIXED), 1), play(begin(method), 1)
    assert not torch.equal(plain.server.shared["head.weight"], other.server.shared["head.weight"])


@pytest.mark.parametrize(
    ("method", "weight"), [("irm", "lam"), ("v-rex", "beta"), ("coral", "lam"), ("mmd", "lam")]
)
def test_with_weight_zero_it_is_fedavg(method, weight, same):
    off = play(begin(build(method, **{weight: 0.0})), 1)
    same(play(start("fedavg", **MIXED), 1).server.shared, off.server.shared)


def test_a_batch_whose_domains_are_missing_or_too_few_is_refused():
    with pytest.raises(ConfigError, match="batch of 3 samples has the domains of none"):
        rows_by_domain(Batch(drawn(3, 2), torch.zeros(3)))
    with pytest.raises(ConfigError, match="batch of 3 samples has the domains of 2"):
        rows_by_domain(Batch(drawn(3, 2), torch.zeros(3), domains=torch.zeros(2).long()))


def test_rows_are_grouped_by_domain_and_small_groups_left_out():
    batch = Batch(drawn(5, 2), torch.zeros(5), domains=torch.tensor([3, 0, 3, 7, 0]))
    assert [r.tolist() for r in rows_by_domain(batch)] == [[1, 4], [0, 2], [3]]
    assert [r.tolist() for r in rows_by_domain(batch, least=2)] == [[1, 4], [0, 2]]


def test_the_weight_is_one_in_the_first_share_of_the_rounds(open_client):
    client = open_client(start("irm", **MIXED, **ALLOWED, rounds=10), "client-0")
    found = []
    for client.round in range(1, 5):
        found.append(annealed(client, 100.0, 0.2))
    assert found == [1.0, 1.0, 100.0, 100.0]
    client.round = 1
    assert annealed(client, 0.5, 0.2) == 0.5
    assert annealed(client, 100.0, 0.01) == 1.0  # part of a round counts as one
    assert annealed(client, 100.0, 0.0) == 100.0


def test_pairs_count_the_same():
    groups = [torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([4.0])]
    assert float(pair_mean(groups, lambda a, b: (b - a).sum())) == pytest.approx((1 + 4 + 3) / 3)


# each one's own formula


def risk(logits, y):
    """Cross-entropy of one domain, and its slope in a factor on the logits."""
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    one = np.eye(logits.shape[1])[y]
    return -np.log((p * one).sum(1)).mean(), ((p - one) * logits).sum(1).mean()


@pytest.fixture
def step(open_client):
    """A client in the last round, and a step on six samples of three domains."""
    client = open_client(start("irm", **MIXED, **ALLOWED), "client-0")
    client.round = 3
    domains, y = torch.tensor([0, 1, 0, 2, 1, 1]), torch.tensor([0, 1, 2, 3, 0, 1])
    out = Output(drawn(6, 4), drawn(6, 5, seed=1))
    return client, Step(Batch(drawn(6, 2), y, domains=domains), out, "model")


def by_domain(step_):
    logits, y = step_.out.logits.double().numpy(), step_.y.numpy()
    return [risk(logits[rows], y[rows]) for rows in ([0, 2], [1, 4, 5], [3])]


def test_irm_is_the_mean_squared_slope_of_the_domains_risks(step):
    client, here = step
    slopes = np.array([slope for _, slope in by_domain(here)])
    found = build("irm", lam=7.0).parts[0].loss(client, here).detach()
    assert float(found) == pytest.approx(7.0 * (slopes**2).mean(), rel=1e-5)


def test_irms_slope_of_a_squared_error_is_in_closed_form():
    """d/ds mean (s z - y)^2 = 2 mean (z - y) z, zero for least squares through the origin."""
    z, y = drawn(6, 1), drawn(6, seed=4)
    slope = scale_slope(objective("regression"), z, y)
    assert float(slope.detach()) == pytest.approx(
        float((2 * (z[:, 0] - y) * z[:, 0]).mean()), rel=1e-5
    )
    best = (z[:, 0] @ y) / (z[:, 0] @ z[:, 0])
    assert abs(float(scale_slope(objective("regression"), best * z, y).detach())) < 1e-6


def test_irms_penalty_has_a_gradient_in_the_features(step):
    client, here = step
    here.out.logits.requires_grad_()
    build("irm").parts[0].loss(client, here).backward()
    assert float(here.out.logits.grad.abs().sum()) > 0


def test_v_rex_is_the_variance_of_the_domains_risks(step):
    client, here = step
    risks = np.array([value for value, _ in by_domain(here)])
    found = build("v-rex", beta=3.0).parts[0].loss(client, here).detach()
    assert float(found) == pytest.approx(3.0 * ((risks - risks.mean()) ** 2).mean(), rel=1e-5)


def test_coral_is_the_mean_gap_of_the_moments_of_domains_with_two_samples(step):
    client, here = step
    z = here.out.features.double().numpy()
    a, b = z[[0, 2]], z[[1, 4, 5]]  # the third domain has one sample
    gap = ((a.mean(0) - b.mean(0)) ** 2).sum() / 5
    gap += ((np.cov(a.T) - np.cov(b.T)) ** 2).sum() / 25
    found = build("coral", lam=2.0).parts[0].loss(client, here).detach()
    assert float(found) == pytest.approx(2.0 * gap, rel=1e-5)


def test_corals_gap_of_a_shifted_copy_is_the_shift_alone():
    z = drawn(7, 3)
    assert float(moment_gap(z, z + 2.0)) == pytest.approx(4.0, rel=1e-4)


def test_mmd_is_the_mean_over_pairs_under_the_sum_of_the_kernels(step):
    client, here = step
    z = here.out.features.double().numpy()
    groups = [z[[0, 2]], z[[1, 4, 5]], z[[3]]]

    def kernel(a, b):
        squared = ((a[:, None] - b[None]) ** 2).sum(2)
        return sum(np.exp(-g * squared) for g in (0.001, 0.01, 0.1, 1, 10, 100, 1000)).mean()

    gaps = [
        kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
        for a, b in ((groups[0], groups[1]), (groups[0], groups[2]), (groups[1], groups[2]))
    ]
    found = build("mmd", lam=2.0).parts[0].loss(client, here).detach()
    assert float(found) == pytest.approx(2.0 * np.mean(gaps), rel=1e-4)


def test_mmd_of_far_points_is_twice_the_number_of_kernels():
    far = torch.tensor([[0.0], [1e4]])
    assert float(kernel_gap(far[:1], far[1:])) == pytest.approx(2 * len(RATES), rel=1e-5)


def test_groups_of_one_row_join_the_last_larger_one():
    groups = [torch.tensor(g) for g in ([0], [1, 2], [3, 4, 5], [6])]
    assert [g.tolist() for g in without_single_rows(groups)] == [[1, 2], [3, 4, 5, 0, 6]]
    assert [g.tolist() for g in without_single_rows(groups[1:3])] == [[1, 2], [3, 4, 5]]
    assert [g.tolist() for g in without_single_rows([groups[0], groups[3]])] == [[0, 6]]


@pytest.mark.parametrize("eps", [1.0, 0.25])
def test_fish_walks_over_the_domains_and_goes_part_of_the_way(bowls, eps):
    """Two quadratics: r = 1 - lr a; after left, then right, v = r (r w + (1 - r) b) + (1 - r) b."""
    session = bowls.start(
        *build("fish", eps=eps).parts, partition=Pooled(), steps=1, batch_size=64, lr=0.1, **ALLOWED
    )
    play(session, 1)
    r = {k: 1 - 0.1 * bowls.a[k] for k in ("left", "right")}
    ends = []
    for first, second in (("left", "right"), ("right", "left")):
        v = r[first] * bowls.w + (1 - r[first]) * bowls.b[first]
        v = r[second] * v + (1 - r[second]) * bowls.b[second]
        ends.append(bowls.w + eps * (v - bowls.w))
    found = session.server.shared["bowl.w"].numpy()
    assert np.abs(ends[0] - ends[1]).max() > 1e-2 * eps  # the order shows
    assert min(np.abs(found - end).max() for end in ends) < 1e-5


def test_fish_draws_another_order_in_another_step(bowls):
    """Both orders of two domains occur within a few steps."""
    plan = {"partition": Pooled(), "batch_size": 64, "lr": 0.1, **ALLOWED}
    seen = set()
    for seed in range(6):
        session = bowls.start(*build("fish").parts, steps=1, seed=seed, **plan)
        seen.add(tuple(play(session, 1).server.shared["bowl.w"].tolist()))
    assert len(seen) == 2


def test_fish_moves_statistics_once_per_batch_as_fedavg_does(replies):
    """The forward pass on the whole batch comes first; those on its parts leave no trace."""
    plan = {**MIXED, "steps": 1}
    plain, other = play(start("fedavg", **plan), 1), play(begin("fish", steps=1), 1)
    for a, b in zip(replies(plain, 1), replies(other, 1), strict=True):
        for key in plain.server.statistics:
            assert torch.equal(a.shared[key], b.shared[key])
