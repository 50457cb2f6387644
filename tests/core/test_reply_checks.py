"""No update touches the model unchecked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedshift.base.errors import RunError
from fedshift.core.message import Update
from fedshift.core.server import Policy
from fedshift.engine import replies
from fedshift.engine.reply_checks import SLACK
from fedshift.testing import RecordingTransport, play, start, worker

W = "head.weight"


class Forging(RecordingTransport):
    """Changes one client's reply to one task on its way."""

    checks_finite = False

    def __init__(self, site, task: str, change: Callable[[Update], Update]):
        super().__init__(site)
        self.task, self.change = task, change

    def deliver(self, messages):
        for reply in super().deliver(messages):
            forged = (reply.task, reply.client) == (self.task, "dark-0")
            yield self.change(reply) if forged else reply


def forge(method="fedavg", task="train", change=lambda u: u, policy=None, **changes):
    session = start(method, **changes)
    session.transport = Forging(worker(session), task, change)
    session.server.policy = policy or Policy()
    return session


def put(section, key, value):
    return lambda u: replace(u, **{section: getattr(u, section) | {key: value}})


def drop(key):
    return lambda u: replace(u, shared={k: v for k, v in u.shared.items() if k != key})


def edit(key, change):
    return lambda u: replace(u, shared=u.shared | {key: change(u.shared[key])})


def spoilt(value):
    def change(tensor):
        out = tensor.clone()
        out.view(-1)[-1] = value
        return out

    return change


BAD = {
    "a missing entry": (drop(W), r"1 missing and 0 unexpected shared entries, such as head.weight"),
    "a strange entry": (put("shared", "x", torch.ones(1)), r"0 missing and 1 unexpected .* x"),
    "personal entries": (put("personal", W, torch.ones(1)), r"unexpected personal entries"),
    "another shape": (
        edit(W, lambda v: v[:, :1]),
        r"head.weight has shape \(4, 1\), not \(4, 16\)",
    ),
    "broadcastable": (
        edit("head.bias", lambda v: v[:1]),
        r"head.bias has shape \(1,\), not \(4,\)",
    ),
    "another dtype": (edit(W, lambda v: v.double()), r"head.weight is torch.float64, not"),
    "an integer": (edit("head.bias", lambda v: v.int()), r"head.bias is torch.int32"),
    "NaN": (edit(W, spoilt(math.nan)), r"head.weight has a value that is not finite"),
    "infinity": (edit("block1.1.running_var", spoilt(math.inf)), r"running_var has a value"),
    "no examples": (lambda u: replace(u, examples=0), r"examples is 0, not a whole number from 1"),
    "half examples": (lambda u: replace(u, examples=11.0), r"examples is 11.0, not a whole"),
    "more examples": (
        lambda u: replace(u, examples=999),
        r"examples is 999, but .* enrolled with 11",
    ),
    "steps": (lambda u: replace(u, steps=-1), r"steps is -1"),
    "a metric": (lambda u: replace(u, metrics={"task": math.nan}), r"metric task is nan"),
    "a stranger's payload": (put("payload", "mixup/x", torch.ones(1)), r"'mixup/x' belongs to no"),
    "a nameless payload": (put("payload", "x", torch.ones(1)), r"'x' belongs to no part"),
    "another round": (lambda u: replace(u, round=7), r"answers 'train' of round 7, not 'train' of"),
    "another task": (lambda u: replace(u, task="score"), r"answers 'score' of round 1"),
    "too much": (
        put("payload", "mixup/x", torch.empty(SLACK + 2**20, dtype=torch.uint8)),
        r"it has \d+ bytes, and max_bytes is \d+",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_update_stops_the_run_with_the_sites_name_and_the_reason(case):
    change, reason = BAD[case]
    with pytest.raises(RunError, match=rf"client dark-0 is lost: update refused: .*{reason}"):
        play(forge(change=change))


@pytest.mark.parametrize("case", ["NaN", "another shape", "a missing entry"])
def test_a_refused_update_leaves_no_trace_in_the_model(case):
    skip = Policy("skip")
    bad = play(forge(change=BAD[case][0], policy=skip), 1)
    none = forge(policy=skip)
    real = none.transport.deliver
    none.transport.deliver = lambda messages: (
        u for u in real(messages) if (u.task, u.client) != ("train", "dark-0")
    )
    play(none, 1)
    for key, value in none.server.shared.items():
        assert torch.equal(value, bad.server.shared[key])
    (row,) = bad.record.losses()["dark-0"]
    assert row["reason"].startswith("update refused: ")


def test_what_is_refused_has_come_all_the_same():
    session = play(forge(change=drop(W), policy=Policy("skip")), 1)
    up = [r for r in session.record.ledger if r["direction"] == "up" and r["task"] == "train"]
    assert sorted(r["client"] for r in up) == ["bright-0", "bright-1", "dark-0", "dark-1"]


def test_a_refused_score_is_a_missing_one():
    bad = lambda u: replace(u, metrics={})  # noqa: E731
    session = play(forge(task="score", change=bad, policy=Policy("skip")), 1)
    assert session.record.metrics[-1]["unscored"] == ["dark-0"]


def test_numbers_are_large_only_as_far_as_every_rule_can_square_and_add_them():
    play(forge(change=edit(W, spoilt(1e14))), 1)
    with pytest.raises(RunError, match=r"head.weight has a norm of 1e\+16, and all together may"):
        play(forge(change=edit(W, spoilt(1e16))), 1)


@pytest.mark.parametrize(
    ("task", "changes", "change", "reason"),
    [
        ("score", {}, put("shared", W, torch.ones(1)), "unexpected shared entries"),
        ("score", {}, lambda u: replace(u, metrics={}), "val: count is missing"),
        ("score", {}, put("payload", "a/b", torch.ones(1)), "'score' has no payload"),
        ("statistics", {"bn": "recompute"}, drop("block1.1.running_mean"), "1 missing"),
        ("statistics", {"bn": "recompute"}, put("shared", W, torch.ones(1)), "1 unexpected"),
        (
            "train",
            {"bn": "recompute"},
            put("shared", "block1.1.running_mean", torch.ones(4)),
            "1 un",
        ),
    ],
)
def test_every_task_has_its_own_entries(task, changes, change, reason):
    play(forge(task=task, **changes), 1)
    with pytest.raises(RunError, match=rf"round 1, {task}: client dark-0 .*{reason}"):
        play(forge(task=task, change=change, **changes), 1)


def test_donated_entries_are_the_private_ones():
    play(forge("fedper", "donate", private_at_new_site="mean"), 1)
    change = put("personal", W, torch.ones(1))
    with pytest.raises(RunError, match=r"donate: client dark-0 .* head.weight has shape"):
        play(forge("fedper", "donate", change, private_at_new_site="mean"), 1)


def test_the_size_limit_is_a_choice():
    size = sum(v.numel() * v.element_size() for v in start("fedavg").server.shared.values())
    play(forge(policy=Policy(max_bytes=size)), 1)
    with pytest.raises(RunError, match=rf"it has {size} bytes, and max_bytes is {size - 1}"):
        play(forge(policy=Policy(max_bytes=size - 1)), 1)


def test_each_update_is_checked_once(monkeypatch):
    session, seen = start("scaffold"), []
    real = replies.why_rejected
    monkeypatch.setattr(
        replies, "why_rejected", lambda *a, **k: (seen.append(a[2]), real(*a, **k))[1]
    )
    play(session, 1)
    received = [m for m in session.transport.seen if isinstance(m, Update)]
    assert len(seen) == len(received)
