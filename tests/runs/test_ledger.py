"""The ledger of a run is the same whatever carries its messages."""

from __future__ import annotations

import pytest

from fedshift.core.config import configure
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.experiment.session import Options, prepare
from fedshift.runs.ledger import Ledger
from fedshift.testing import play, tiny_scenario


def ledger_of(transport, method, path):
    config, whole = configure(method, tiny_scenario(steps=1, rounds=2))
    session = prepare(config, whole, path, Options(transport=transport, workers=2))
    try:
        play(session)
    finally:
        session.transport.close()
    return (path / "ledger.jsonl").read_text()


@pytest.mark.parametrize("method", ["scaffold", "secure-aggregation"])
def test_it_is_the_same_in_process_in_a_pool_and_through_bytes(method, tmp_path):
    here = ledger_of("inprocess", method, tmp_path / "inprocess")
    assert ledger_of("wire", method, tmp_path / "wire") == here  # sites in reverse order
    assert ledger_of("pool", method, tmp_path / "pool") == here  # as they finish


def lines(ledger):
    return [(r["client"], r["direction"]) for r in ledger.rows]


def test_replies_stand_in_the_order_of_sending():
    ledger = Ledger()
    for client in "cab":
        ledger.sent(Broadcast(client, "train", 1))
    ledger.received(Update("b", "train", 1))
    ledger.lost(Lost("b", "train", 1, "refused"))
    ledger.received(Update("stranger", "train", 1))
    ledger.lost(Lost("a", "train", 1, "no answer"))
    ledger.received(Update("c", "train", 1))
    sent = [("c", "down"), ("a", "down"), ("b", "down")]
    came = [("c", "up"), ("a", "lost"), ("b", "up"), ("b", "lost"), ("stranger", "up")]
    assert lines(ledger) == sent + came


def test_each_exchange_is_apart():
    ledger = Ledger()
    ledger.sent(Broadcast("b", "train", 1))
    ledger.received(Update("b", "train", 1))
    ledger.sent(Broadcast("a", "train", 1))
    ledger.received(Update("a", "train", 1))
    ledger.note(1, "privacy", "")
    ledger.received(Update("a", "train", 1))
    wanted = [("b", "down"), ("b", "up"), ("a", "down"), ("a", "up"), ("", "none"), ("a", "up")]
    assert lines(ledger) == wanted
