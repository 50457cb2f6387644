from __future__ import annotations

import json

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.core.message import Broadcast, Update

NAMES = st.text("abcxyz./0123456789", min_size=1, max_size=8)
TREES = st.dictionaries(
    NAMES,
    st.sampled_from(
        [
            torch.tensor(3),
            torch.tensor(2.5, dtype=torch.float64),
            torch.zeros(0, 4),
            torch.arange(6, dtype=torch.uint8).reshape(2, 3),
            torch.arange(48.0).reshape(2, 3, 4, 2).contiguous(memory_format=torch.channels_last),
        ]
    ),
    max_size=4,
)
FLOATS = st.floats(allow_nan=False)


def require_equal(a, b):
    assert type(a) is type(b)
    assert a.scalars() == b.scalars()
    for section in ("shared", "personal", "payload"):
        left, right = getattr(a, section), getattr(b, section)
        assert list(left) == list(right)
        for key, value in left.items():
            assert value.dtype == right[key].dtype
            assert value.shape == right[key].shape
            assert torch.equal(value, right[key])


@given(TREES, TREES, TREES, st.text(max_size=6), st.integers(0, 99))
def test_a_broadcast_survives_bytes(shared, personal, payload, client, round_):
    message = Broadcast(client, "train", round_, shared, personal, payload)
    require_equal(message, Broadcast.from_bytes(message.to_bytes()))


@given(TREES, TREES, st.dictionaries(NAMES, FLOATS), st.dictionaries(NAMES, st.text() | FLOATS))
def test_an_update_survives_bytes(shared, payload, metrics, facts):
    message = Update(
        "c", "score", 2, shared, {}, payload, examples=5, steps=7, facts=facts, metrics=metrics
    )
    require_equal(message, Update.from_bytes(message.to_bytes()))


def test_bytes_are_told_apart_by_kind():
    message = Update(
        "dark-0",
        "train",
        3,
        shared={"w": torch.zeros(3, 5), "n": torch.tensor(1)},
        personal={"p": torch.zeros(7, dtype=torch.float64)},
        payload={
            "control/c": torch.zeros(2),
            "control/d": torch.zeros(4, dtype=torch.uint8),
            "probe/loss": torch.zeros((), dtype=torch.float64),
        },
        examples=11,
        metrics={"task": 0.5},
    )
    scalars = {
        "client": "dark-0",
        "task": "train",
        "round": 3,
        "examples": 11,
        "steps": 0,
        "facts": {},
        "metrics": {"task": 0.5},
        "kept": False,
    }
    expected = {
        "scalars": len(json.dumps(scalars)),
        "shared": 3 * 5 * 4 + 8,
        "personal": 7 * 8,
        "payload/control": 2 * 4 + 4,
        "payload/probe": 8,
    }
    assert message.bytes_by_kind() == expected
    assert message.nbytes == sum(expected.values())


def test_kinds_that_weigh_nothing_are_left_out():
    assert set(Broadcast("c", "enrol", 0).bytes_by_kind()) == {"scalars"}
    assert set(Broadcast("c", "train", 1, {"w": torch.ones(2)}).bytes_by_kind()) == {
        "scalars",
        "shared",
    }


@given(TREES, TREES, TREES)
def test_the_weight_is_the_sum_of_all_tensors_and_the_scalars(shared, personal, payload):
    message = Broadcast("c", "train", 1, shared, personal, payload)
    tensors = [t for section in (shared, personal, payload) for t in section.values()]
    size = sum(t.numel() * t.element_size() for t in tensors)
    scalars = len(json.dumps({"client": "c", "task": "train", "round": 1, "visited": None}))
    assert message.nbytes == size + scalars


def test_messages_share_no_default():
    first, second = Update("a", "train", 1), Update("b", "train", 1)
    first.metrics["task"] = 1.0
    assert second.metrics == {}
