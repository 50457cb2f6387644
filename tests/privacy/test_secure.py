"""The server learns the sum, exactly, and nothing of a single site."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedshift.base.errors import ConfigError, RunError
from fedshift.core.message import Lost, Update
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.server import Policy
from fedshift.privacy.secure import SecureAggregation, in_order
from fedshift.privacy.site import Secrets
from fedshift.testing import RecordingTransport, play, start, worker

SIZES = {"bright-0": 7, "bright-1": 6, "dark-0": 11, "dark-1": 11}
KEYS, SHARES, TRAIN, UNMASK = range(4)  # the exchanges of a round, in order


class Dropping(RecordingTransport):
    """Loses clients in chosen exchanges of a round: ``{exchange: clients}``."""

    def __init__(self, site, drops):
        super().__init__(site)
        self.drops, self.exchange = drops, -1

    def deliver(self, messages):
        if messages[0].task in ("talk", "train"):
            self.exchange = (self.exchange + 1) % 4
        gone = self.drops.get(self.exchange, ()) if messages[0].task in ("talk", "train") else ()
        yield from super().deliver([m for m in messages if m.client not in gone])
        for message in messages:
            if message.client in gone:
                yield Lost(message.client, message.task, message.round, "unplugged")


def dropping(drops, method="secure-aggregation", **changes):
    session = start(method, **changes)
    session.server.policy = Policy("skip", min_sites=2)
    session.transport = Dropping(worker(session), drops)
    return session


def trained(session, round_=1):
    """Updates of a round as they crossed the wire, by client."""
    seen = [m for m in session.transport.seen if isinstance(m, Update) and m.round == round_]
    return {m.client: m for m in seen if m.task == "train"}


def masked(session):
    return {
        c: u.payload["secure-aggregation/masked"].numpy().view(np.uint64)
        for c, u in sorted(trained(session).items())
    }


def plain_updates(**changes):
    """What each site would have sent in the clear in round 1."""
    return trained(play(start("fedavg", **changes), 1))


def quantised(update, weight, bits=24):
    """Python integers, so nothing can wrap."""
    values = [v.double().numpy().ravel() for v in in_order(update.shared).values()]
    return np.rint(np.concatenate(values) * weight * 2.0**bits).astype(np.int64).astype(object)


def expected_mean(updates, weights, bits=24):
    """The mean of the quantised models, in float64, by entry."""
    total = sum(quantised(u, weights[c], bits) for c, u in updates.items())
    flat = total.astype(np.float64) / 2.0**bits / sum(weights[c] for c in updates)
    out, at = {}, 0
    for key, value in in_order(next(iter(updates.values())).shared).items():
        out[key] = flat[at : at + value.numel()].reshape(value.shape).astype(np.float32)
        at += value.numel()
    return out


@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize("bits", [12, 24])
def test_the_model_is_the_mean_of_the_quantised_models_to_the_bit(weights, bits):
    session = play(start(f"secure-aggregation[bits={bits}]", weights=weights), 1)
    counted = SIZES if weights == "examples" else dict.fromkeys(SIZES, 1)
    expected = expected_mean(plain_updates(weights=weights), counted, bits)
    assert "block1.1.running_mean" in expected  # statistics are in the sum
    for key, value in expected.items():
        np.testing.assert_array_equal(session.server.shared[key].numpy(), value)


def test_it_is_fedavg_within_the_resolution():
    plain, secure = play(start("fedavg"), 1), play(start("secure-aggregation"), 1)
    for key, value in in_order(plain.server.shared).items():
        found = secure.server.shared[key]
        assert found.dtype == value.dtype
        bound = 4 * 2.0**-25 / sum(SIZES.values()) + 1e-6 * value.abs().max()
        assert float((found - value).abs().max()) <= bound


def looks_uniform(vector):
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    return chisquare(counts).pvalue > 1e-4


def test_what_a_site_sends_looks_like_noise_and_so_does_every_partial_sum():
    session = play(start("secure-aggregation"), 1)
    vectors = masked(session)
    assert not looks_uniform(
        quantised(plain_updates()["dark-0"], 11).astype(np.int64).view(np.uint64)
    )
    for size in (1, 2, 3, 4):  # the whole sum too: each site's own mask is still on it
        for some in itertools.combinations(vectors, size):
            total = sum((vectors[c] for c in some), np.zeros_like(vectors["dark-0"]))
            assert looks_uniform(total), some


def test_pairwise_masks_cancel_and_own_masks_are_what_is_left():
    from fedshift.privacy import masks

    session = play(start("secure-aggregation"), 1)
    vectors, part = masked(session), SecureAggregation()
    total = sum(vectors.values(), np.zeros_like(vectors["dark-0"]))
    for client in vectors:
        seed = masks.derive(
            repr((0, client)).encode(),
            masks.to_bytes(part.nonce(session.server)).hex(),
        )
        total = total - masks.expand(Secrets(client, seed).own_mask, len(total))
    whole = sum(quantised(u, SIZES[c]) for c, u in plain_updates().items())
    assert total[:-1].view(np.int64).tolist() == whole.tolist()
    assert int(total[-1]) == sum(SIZES.values())


DROPS = {
    "keys": ({KEYS: {"dark-1"}}, {"dark-1"}),
    "shares": ({SHARES: {"dark-1"}}, {"dark-1"}),
    "training": ({TRAIN: {"dark-1"}}, {"dark-1"}),
    "first by name": ({TRAIN: {"bright-0"}}, {"bright-0"}),
    "unmasking": ({UNMASK: {"dark-1"}}, set()),
    "one in training, another in unmasking": (
        {TRAIN: {"dark-0"}, UNMASK: {"bright-1"}},
        {"dark-0"},
    ),
    "two in training": ({TRAIN: {"dark-0", "bright-0"}}, {"dark-0", "bright-0"}),
}


@pytest.mark.parametrize("case", DROPS)
def test_sites_may_drop_out_and_the_sum_is_that_of_the_others(case):
    drops, absent = DROPS[case]
    method = "secure-aggregation[threshold=0.5]"
    session = play(dropping(drops, method), 1)
    updates = {c: u for c, u in plain_updates().items() if c not in absent}
    for key, value in expected_mean(updates, SIZES).items():
        np.testing.assert_array_equal(session.server.shared[key].numpy(), value)
    assert session.server.participants == len(updates)
    dropped = len(absent) if TRAIN in drops else 0
    told = session.record.metrics[-1]["privacy"]["secure-aggregation"]
    assert (told["sites"], told["dropped"]) == (len(updates), dropped)


@pytest.mark.parametrize("when", [SHARES, TRAIN, UNMASK])
def test_too_few_sites_are_not_unmasked(when):
    session = dropping({when: {"dark-0", "dark-1"}})
    with pytest.raises(RunError, match=r"2 of 4 sites are left, and secure-aggregation needs 3"):
        play(session)


def messages(session):
    return [m for m in session.transport.seen if not isinstance(m, Update) and m.task == "talk"]


def test_a_site_never_tells_both_secrets_of_another():
    session = play(dropping({TRAIN: {"dark-1"}}), 1)
    told = [m for m in session.transport.seen if isinstance(m, Update) and m.task == "talk"]
    unmasking = [set(m.payload) for m in told if any("/self/" in k for k in m.payload)]
    assert len(unmasking) == 3
    for keys in unmasking:
        own = {k.rpartition("/")[2] for k in keys if "/self/" in k}
        pair = {k.rpartition("/")[2] for k in keys if "/pair/" in k}
        assert (own, pair) == ({"bright-0", "bright-1", "dark-0"}, {"dark-1"})


def test_a_site_tells_nothing_about_a_sum_of_too_few():
    session = play(start("secure-aggregation"), 1)
    (payload,) = [m for m in messages(session)[-4:] if m.client == "dark-0"]
    forged = payload.payload | {
        f"secure-aggregation/answered/{c}": torch.tensor(c == "dark-1") for c in SIZES
    }
    with pytest.raises(RunError, match=r"dark-0 is asked to unmask the sum of 1 sites"):
        worker(session).visit(replace(payload, payload=forged))


def test_keys_are_new_in_every_round():
    session = play(start("secure-aggregation"), 2)
    talks = [m for m in session.transport.seen if isinstance(m, Update) and m.task == "talk"]
    keys = [m.payload.get("secure-aggregation/mask") for m in talks]
    found = {bytes(k.numpy()) for k in keys if k is not None}
    assert len(found) == 8


def test_secret_keys_change_the_masks_and_no_bit_of_the_model():
    runs = [play(start("secure-aggregation[randomness=system]"), 2) for _ in "ab"]
    a, b = (masked(run)["dark-0"] for run in runs)
    assert not np.any(a == b)
    seeded = play(start("secure-aggregation"), 2).server.shared
    for run in runs:
        assert all(torch.equal(v, seeded[k]) for k, v in run.server.shared.items())


def test_nothing_of_a_site_is_in_the_clear():
    session = play(start("secure-aggregation"), 1)
    for update in trained(session).values():
        assert not update.shared
        assert not update.personal
        assert not update.metrics
        assert update.payload.keys() == {"secure-aggregation/masked"}
    rows = [r for r in session.record.ledger if r["direction"] == "up" and r["round"] == 1]
    for row in rows:
        expected = (
            {"scalars"} if row["task"] == "score" else {"scalars", "payload/secure-aggregation"}
        )
        assert row["kinds"].keys() == expected
    assert [r["task"] for r in session.record.ledger].count("privacy") == 1


REFUSED = {
    "scaffold + secure-aggregation": "control-variates also sends the change of its control",
    "fdse + secure-aggregation": "needs single updates",
    "groupdro + secure-aggregation": "also sends training loss",
    "f2dc + secure-aggregation": "domain-aware weighs single updates",
    "fednova + secure-aggregation": "normalised-mean is not a plain mean",
    "central-dp + secure-aggregation": "central-dp needs single updates",
    "secure-aggregation + local-dp": "secure-aggregation moves the weights .* put it last",
}


@pytest.mark.parametrize("method", REFUSED)
def test_who_needs_single_updates_is_refused_by_name(method):
    with pytest.raises(ConfigError, match=REFUSED[method]):
        start(method)


def test_so_are_statistics_of_single_sites():
    with pytest.raises(ConfigError, match="bn=recompute sends the statistics of single sites"):
        start("secure-aggregation", bn="recompute")


def test_a_cohort_of_one_has_no_sum_to_hide_in():
    with pytest.raises(ConfigError, match="sum of two or more, and 1 is asked in a round"):
        start("secure-aggregation", clients_per_round=1)
    play(start("secure-aggregation", clients_per_round=2), 1)


@dataclass(frozen=True)
class Gossip(Part):
    def finish(self, client):
        return {"mean": client.site.data.train.labels.double().mean()}


def test_payload_in_the_clear_does_not_leave_the_site():
    with pytest.raises(ConfigError, match=r"gossip/mean would leave in the clear"):
        play(start(Method((Gossip(), SecureAggregation()))))


NAME = "secure-aggregation"
FORGED = {
    "short": (
        "train",
        {f"{NAME}/masked": torch.zeros(3, dtype=torch.int64)},
        r"payload secure-aggregation/masked has shape \(3,\)",
    ),
    "float": ("train", {f"{NAME}/masked": torch.zeros(3)}, "masked has shape"),
    "nothing": ("train", {}, "payload secure-aggregation/masked is missing"),
    "no key": ("talk", {f"{NAME}/mask": torch.zeros(32, dtype=torch.uint8)}, "1 secret entries"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_bad_reply_is_refused_before_it_is_summed(case):
    task, payload, reason = FORGED[case]
    session = start("secure-aggregation")
    real = session.transport.deliver

    def forged(messages):
        for reply in real(messages):
            bad = (reply.task, reply.client) == (task, "dark-0")
            yield replace(reply, payload=payload) if bad else reply

    session.transport.deliver = forged
    with pytest.raises(RunError, match=rf"client dark-0 is lost: update refused: .*{reason}"):
        play(session)


def test_it_stands_under_server_optimisers_and_local_noise():
    plain = play(start("fedavgm"), 2).server.shared
    secure = play(start("fedavgm + secure-aggregation"), 2).server.shared
    for key, value in in_order(plain).items():
        torch.testing.assert_close(secure[key], value, rtol=1e-3, atol=1e-4)
    both = play(start("local-dp[noise=0, clip=1e6] + secure-aggregation"), 1)
    assert set(both.record.metrics[-1]["privacy"]) == {"local-dp", "secure-aggregation"}
