"""A site that sends something wrong in secure aggregation is named, and not those it harms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedshift.base.errors import RunError
from fedshift.core.server import Policy
from fedshift.testing import RecordingTransport, play, start, worker

PART = "secure-aggregation"
KEYS, SHARES, TRAIN, UNMASK = range(4)  # the exchanges of a round, in order
BAD = "dark-0"


class Lying(RecordingTransport):
    """One site's replies of one exchange are changed on their way."""

    def __init__(self, site, exchange, change, liars=(BAD,)):
        super().__init__(site)
        self.exchange, self.change, self.liars, self.now = exchange, change, liars, -1

    def deliver(self, messages):
        if messages[0].task in ("talk", "train"):
            self.now = (self.now + 1) % 4
        for reply in super().deliver(messages):
            spoken = reply.task in ("talk", "train") and self.now == self.exchange
            if spoken and reply.client in self.liars:
                told = {k: v.clone() for k, v in reply.payload.items()}
                self.change(told)
                yield replace(reply, payload=told)
            else:
                yield reply


def lying(exchange, change, *, skip=False, **liars):
    session = start(PART)
    session.server.policy = Policy("skip", min_sites=2) if skip else Policy()
    session.transport = Lying(worker(session), exchange, change, **liars)
    return session


def lost(session):
    return {row["client"]: row["reason"] for row in session.record.ledger if "reason" in row}


@pytest.mark.parametrize("kind", ["encryption", "mask"])
def test_a_key_that_is_none_is_refused_with_its_senders_name(kind):
    def zero(told):
        told[f"{PART}/{kind}"].zero_()  # a point of low order

    session = play(lying(KEYS, zero, skip=True), 1)
    assert lost(session) == {BAD: f"update refused: its {kind} key is not one of X25519"}
    with pytest.raises(RunError, match=f"client {BAD} is lost: .*not one of X25519"):
        play(lying(KEYS, zero), 1)


def garble(told):
    for box in told.values():
        box[5] += 1


def test_shares_that_nobody_can_read_blame_the_site_that_sent_them():
    with pytest.raises(RunError, match=f"site {BAD} sent secret shares that .*bright-0.* cannot"):
        play(lying(SHARES, garble), 1)


def test_one_box_that_cannot_be_read_harms_nobody():
    def one(told):
        told[f"{PART}/bright-0"][5] += 1

    honest, found = play(start(PART), 1), play(lying(SHARES, one), 1)
    for key, value in honest.server.shared.items():
        assert torch.equal(found.server.shared[key], value)
    assert not lost(found)


def test_a_returned_share_that_is_wrong_is_left_out_and_its_site_named(caplog):
    def change(told):
        told[f"{PART}/self/bright-1"][10] += 1

    honest, found = play(start(PART), 1), play(lying(UNMASK, change), 1)
    for key, value in honest.server.shared.items():
        assert torch.equal(found.server.shared[key], value)
    assert [m for m in caplog.messages if "wrong share" in m] == [
        f"site {BAD} returned a wrong share of bright-1"
    ]


def test_a_share_at_another_sites_position_is_wrong(caplog):
    def change(told):
        told[f"{PART}/self/bright-1"][0] = 1 if told[f"{PART}/self/bright-1"][0] != 1 else 2

    play(lying(UNMASK, change), 1)
    assert f"site {BAD} returned a wrong share of bright-1" in caplog.messages


def test_shares_that_never_fit_blame_their_owner():
    """All sites return something else of bright-1: too many liars to tell, or one dealer."""

    def change(told):
        told[f"{PART}/self/bright-1"][10] += 1

    everybody = ("bright-0", "bright-1", "dark-0", "dark-1")
    with pytest.raises(RunError, match="do not fit what it has published: bright-1 sent wrong"):
        play(lying(UNMASK, change, liars=everybody), 1)


def test_a_changed_weight_is_noticed():
    def heavier(told):
        told[f"{PART}/masked"][-1] += 1000

    with pytest.raises(RunError, match=r"weights in the sum add up to 1035, not to 35: one of bri"):
        play(lying(TRAIN, heavier), 1)


def test_the_claim_is_told_with_the_numbers():
    told = play(start(PART), 1).record.metrics[-1]["privacy"][PART]
    assert told["against"] == "a server that follows the protocol (honest but curious)"
