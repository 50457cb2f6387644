"""FedBR, ICML 2023: Algorithms 2 and 3, Eq. 4, and who holds what of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.base import seeds
from fedshift.base.errors import ConfigError, NotAllowedError, RunError
from fedshift.core.loop import Batch
from fedshift.core.scenario import Scenario
from fedshift.methods.feddebias.means import choose, means_of, mixture, random_sample_means
from fedshift.methods.feddebias.pseudo_data import PseudoData
from fedshift.methods.feddebias.pseudo_output import own_labels, pseudo_inputs
from fedshift.testing import in_process_equals_bytes, play, resumes_exactly, start, tiny_scenario

NAME = PseudoData().name
PUBLIC = {"public": "tiny", "allow": ("public_set", "client_val", "server_unlabelled")}


def generator(seed=0):
    return seeds.generator("test", seed)


def test_a_mean_is_over_m_samples():
    x = np.random.default_rng(0).normal(size=(12, 2, 3))
    found = random_sample_means(torch.from_numpy(x), 4)
    for row in range(3):
        np.testing.assert_allclose(found[row], x[4 * row : 4 * row + 4].mean(0), rtol=1e-12)


def inputs(session, client):
    """Training inputs of a client, (n, 3, 8, 8)."""
    train = session.federation.sites[client].data.train
    return train.take(torch.arange(len(train)))[0]


def among(rows, pool):
    """Whether every row is one of the pool."""
    gaps = (rows[:, None] - pool[None]).flatten(2).abs().amax(2)  # (n, m)
    return bool((gaps.amin(1) < 1e-5).all())


def test_a_mean_of_one_is_a_sample_and_does_not_leave_the_site():
    session = start("feddebias")
    train = session.federation.sites["dark-0"].data.train
    assert among(means_of(train, 8, 1, generator()), inputs(session, "dark-0"))
    with pytest.raises(RunError, match=r"its summary contains an input .*pseudo-data/means"):
        start("feddebias[per_sample=1]")
    everybody = torch.cat([inputs(session, c) for c in session.server.roster])
    assert not among(session.server.state[NAME]["batch"], everybody)


def test_means_are_drawn_with_replacement_and_centre_on_the_clients_mean():
    session = start("feddebias")
    train = session.federation.sites["dark-0"].data.train
    found = means_of(train, 400, 40, generator())  # more in a mean than there are samples
    x = inputs(session, "dark-0")
    error = x.std(0) / (400 * 40) ** 0.5
    assert ((found.mean(0) - x.mean(0)).abs() <= 6 * error + 1e-6).all()
    # the variance of a mean of M draws with replacement is that of one draw over M
    assert float(found.var(0).mean()) == pytest.approx(float(x.var(0).mean()) / 40, rel=0.1)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_a_mixture_is_equation_4(k):
    rng = np.random.default_rng(1)
    x_p, x_k = rng.normal(size=(5, 2, 3)), rng.normal(size=(5, k, 2, 3))
    y_k = np.eye(4)[rng.integers(0, 4, (5, k))]
    x, y = mixture(*(torch.from_numpy(a) for a in (x_p, x_k, y_k.reshape(5, k, 4))))
    for b in range(5):
        total_x, total_y = x_p[b].copy(), np.full(4, 0.25)
        for i in range(k):
            total_x += x_k[b, i]
            total_y += y_k[b, i]
        np.testing.assert_allclose(x[b], total_x / (k + 1), rtol=1e-12)
        np.testing.assert_allclose(y[b], total_y / (k + 1), rtol=1e-12)
    np.testing.assert_allclose(y.sum(1), 1.0)


def test_no_mean_is_taken_twice_before_each_was_taken_once():
    means = torch.arange(5.0)[:, None]
    few, many = choose(means, 3, generator()), choose(means, 12, generator())
    assert len(few.unique()) == 3
    counts = np.bincount(many[:, 0].int().numpy(), minlength=5)
    assert many.shape == (12, 1)
    assert set(counts) == {2, 3}


def mailed(session, round_):
    """Payload of pseudo-data to each client in a round."""
    seen = [m for m in session.transport.seen if m.task == "train" and m.round == round_]
    return {m.client: m.payload.get(f"{NAME}/batch") for m in seen if not hasattr(m, "steps")}


def test_every_client_has_the_same_batch_and_each_round_another():
    session = play(start("feddebias"))
    batches = []
    for round_ in (1, 2, 3):
        first, *others = mailed(session, round_).values()
        assert first.shape == (4, 3, 8, 8)  # the batch size
        assert all(torch.equal(first, other) for other in others)
        batches.append(first)
    assert not torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[1], batches[2])


def test_once_is_sent_once_and_kept(state_of):
    session = play(start("feddebias[refresh=once,size=6]", clients_per_round=2, rounds=5))
    sent = [(c, b) for r in range(1, 6) for c, b in mailed(session, r).items() if b is not None]
    clients = [c for c, _ in sent]
    assert len(set(clients)) == len(clients)
    for client, batch in sent:
        assert batch.shape == (6, 3, 8, 8)
        assert torch.equal(batch, sent[0][1])
        assert torch.equal(state_of(session, client, NAME)["batch"], batch)
    assert not any(f"{NAME}/means" in m.payload for m in session.transport.seen)


def test_what_a_client_uploads_each_round_is_new_and_absent_clients_stay_in(replies):
    session = start("feddebias[per_client=3,size=12]", clients_per_round=2)
    first = dict(session.server.state[NAME])
    enrolled = {c: first[f"means/{c}"] for c in session.server.roster}
    state = play(session, 1).server.state[NAME]
    uploads = {u.client: u.payload[f"{NAME}/means"] for u in replies(session, 1)}
    assert len(uploads) == 2
    assert all(not torch.equal(enrolled[c], m) for c, m in uploads.items())
    latest = enrolled | uploads
    for client, means in latest.items():
        assert means.shape == (3, 3, 8, 8)
        assert torch.equal(state[f"means/{client}"], means)
    pool = torch.cat(list(latest.values()))  # 12 means and B is 12: each of them once
    order = sorted(float(row.sum()) for row in state["batch"])
    assert order == pytest.approx(sorted(float(row.sum()) for row in pool))


def test_nothing_but_the_single_batch_stays_at_a_client(state_of):
    assert not state_of(play(start("feddebias"), 1), "dark-0", NAME)
    kept = state_of(play(start("feddebias[refresh=once]"), 1), "dark-0", NAME)
    assert set(kept) == {"batch"}


def opened(session, open_client, part):
    """A client in a visit, after ``begin``, with a batch of its own."""
    client = open_client(session, "dark-0")
    part.begin(client)
    x, y = client.site.data.train.take(torch.arange(4))
    return client, Batch(x, y)


def test_a_mixture_is_made_anew_on_each_batch_from_local_samples(open_client):
    session = start("feddebias[kind=mixture]", **PUBLIC)
    part = PseudoData(kind="mixture")
    client, batch = opened(session, open_client, part)
    local, labels = inputs(session, "dark-0"), client.site.data.train.labels
    seen = []
    for _ in range(2):
        assert part.batch(client, batch) is batch
        x, y = pseudo_inputs(client), own_labels(client)
        others = 2 * x - client.scratch[NAME]["batch"]  # Eq. 4 solved for the local sample
        gaps = (others[:, None] - local[None]).flatten(2).abs().amax(2)  # (B, n)
        assert float(gaps.amin(1).max()) < 1e-5
        expected = (0.25 + np.eye(4)[labels[gaps.argmin(1)].numpy()]) / 2
        np.testing.assert_allclose(y, expected, rtol=1e-6)
        seen.append(x)
    assert not torch.equal(*seen)


def test_a_mixtures_batch_comes_from_the_public_set_and_no_client_uploads_anything():
    session = play(start("feddebias[kind=mixture,per_sample=1]", **PUBLIC))
    public = session.server.resources["public_set"]
    everything = public.take(torch.arange(len(public)))[0]
    assert among(session.server.state[NAME]["batch"], everything)
    assert not any(
        f"{NAME}/means" in m.payload for m in session.transport.seen if hasattr(m, "steps")
    )
    assert PseudoData(kind="mixture").shares == ""
    assert "8 means of 10 training inputs, per round" in PseudoData().shares
    assert "once" in PseudoData(refresh="once").shares


def test_without_local_samples_labels_are_uniform(open_client):
    part = PseudoData(kind="mixture", local_samples=0)
    session = start("feddebias[kind=mixture,local_samples=0]", **PUBLIC)
    client, batch = opened(session, open_client, part)
    part.batch(client, batch)
    assert own_labels(client) is None
    assert torch.equal(pseudo_inputs(client), client.scratch[NAME]["batch"])


def test_the_batch_hook_of_random_sample_means_draws_nothing(open_client):
    client, batch = opened(start("feddebias"), open_client, PseudoData())
    before = client.generator(NAME).get_state()
    assert PseudoData().batch(client, batch) is batch
    assert own_labels(client) is None
    assert torch.equal(client.generator(NAME).get_state(), before)


def test_a_mixture_without_a_proxy_set_says_what_to_give():
    with pytest.raises(
        NotAllowedError, match=r"public data set.*add 'public_set' to its allow and name one with"
    ):
        start("feddebias[kind=mixture]")
    with pytest.raises(ConfigError, match=r"has none; name one with public='DATASET'"):
        start("feddebias[kind=mixture]", allow=("public_set",))
    with pytest.raises(NotAllowedError, match=r"add 'public_set' to its allow$"):
        start("feddebias[kind=mixture]", public="tiny")
    assert start("feddebias", public="no-such-set")  # not granted, so not looked for


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("feddebias[kind=noise]", "kind is 'noise'; it takes one of rsm, mixture"),
        ("feddebias[refresh=never]", "takes one of round, once"),
        ("feddebias[per_sample=0]", "per_sample is 0; it must be at least 1"),
        ("feddebias[size=1]", "size is 1 and the backbone has BatchNorm, which needs 2"),
        ("feddebias - pseudo-data", r"balanced-output works on pseudo-data.*add \+ pseudo-data"),
        (
            "feddebias - pseudo-data - balanced-output",
            r"contrastive-projector works on pseudo-data.*add \+ pseudo-data",
        ),
    ],
)
def test_bad_input_is_one_line_before_round_1(words, line):
    with pytest.raises(ConfigError, match=line):
        start(words)


@pytest.mark.exhaustive
def test_the_batch_that_is_sent_once_keeps_the_contract():
    resumes_exactly("feddebias[refresh=once]")
    in_process_equals_bytes("feddebias[refresh=once]")


@pytest.mark.exhaustive
def test_a_mixture_keeps_the_contract(monkeypatch):
    """The contract's own scenario grants no public set."""
    scenario: Scenario = tiny_scenario(**PUBLIC)
    monkeypatch.setattr("fedshift.testing.tiny_scenario", scenario.change)
    resumes_exactly("feddebias[kind=mixture]")
