"""What is sealed is what is read: dtypes, shapes, order, bits."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.base.errors import RunError
from fedshift.core.message import Broadcast, Update
from fedshift.transports.flower.envelope import Envelope, from_envelope, to_envelope

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex128,
]


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = torch.empty(shape).numel() * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        raw = bytes(b & 1 for b in raw)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype).view(shape)
    return tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor


trees = st.dictionaries(st.text(max_size=8), tensors(), max_size=4)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=5),
)


@st.composite
def updates(draw):
    return Update(
        draw(st.text(max_size=5)),
        draw(st.sampled_from(["train", "score", "enrol"])),
        draw(st.integers(0, 99)),
        *(draw(trees) for _ in range(3)),
        examples=draw(st.integers(0, 2**40)),
        facts=draw(st.dictionaries(st.text(max_size=5), scalars, max_size=3)),
        metrics=draw(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3)),
    )


def bits(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def require_equal(found, message):
    assert found.scalars() == message.scalars()
    for section in message.SECTIONS:
        left, right = getattr(found, section), getattr(message, section)
        assert list(left) == list(right)
        for key, value in right.items():
            assert left[key].dtype == value.dtype
            assert left[key].shape == value.shape
            assert bits(left[key]) == bits(value)


@given(st.lists(updates(), max_size=3))
def test_messages_come_out_of_the_envelope_as_they_went_in(messages):
    found = from_envelope(to_envelope(messages, {}), Update)
    assert len(found) == len(messages)
    for one, other in zip(found, messages, strict=True):
        require_equal(one, other)


@given(st.lists(updates(), max_size=2))
def test_messages_survive_the_bytes_of_flower(messages):
    flower = pytest.importorskip("fedshift.transports.flower.grid")
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict

    records = flower.to_records(to_envelope(messages, {}), flower.Header("run", "1.0"), {})
    blob = recorddict_to_proto(records).SerializeToString()
    again = recorddict_from_proto(RecordDict.FromString(blob))
    envelope, header = flower.from_records(again)
    assert header == flower.Header("run", "1.0")
    for one, other in zip(from_envelope(envelope, Update), messages, strict=True):
        require_equal(one, other)


def test_what_is_read_shares_no_memory_and_can_be_written():
    sent = Broadcast("a", "train", 1, {"w": torch.ones(3)})
    packed_mail = to_envelope([sent], {})
    first, second = (from_envelope(packed_mail, Broadcast)[0].shared["w"] for _ in range(2))
    first.fill_(5.0)
    assert second.tolist() == sent.shared["w"].tolist() == [1.0, 1.0, 1.0]


def test_the_model_that_all_clients_get_is_packed_once():
    shared = {"w": torch.ones(3)}
    packed = {}
    messages = [Broadcast(c, "train", 1, shared, {"p": torch.zeros(1)}) for c in "ab"]
    one, other = (to_envelope([message], packed) for message in messages)
    assert one.blocks["0"] is other.blocks["0"]
    assert len(packed) == 3
    both = to_envelope([Broadcast("a", "score", 0, shared), messages[0]], {})
    assert len(both.blocks) == 2


def test_letters_share_bytes_and_nothing_that_can_be_edited():
    flower = pytest.importorskip("fedshift.transports.flower.grid")
    envelope, arrays = to_envelope([Broadcast("a", "train", 1, {"w": torch.ones(3)})], {}), {}
    one, other = (flower.to_records(envelope, None, arrays) for _ in range(2))
    assert one["config"] is not other["config"]
    assert one["arrays"] is not other["arrays"]
    assert one["arrays"]["0"] is other["arrays"]["0"]


def spoil(envelope, **changes):
    words = json.loads(envelope.text) | changes
    return Envelope(json.dumps(words), envelope.blocks)


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: Envelope("not JSON", e.blocks),
        lambda e: Envelope(e.text, {}),
        lambda e: Envelope(e.text, {"0": e.blocks["0"][:8]}),
        lambda e: spoil(e, layouts=[]),
        lambda e: spoil(e, layouts=[[["w", "float33", [3]]]]),
        lambda e: spoil(e, layouts=[[["w", "nn", [3]]]]),
        lambda e: spoil(e, layouts=[[["w", "float32", [-1, 3]]]]),
        lambda e: spoil(e, messages=[{"scalars": {"client": "a"}, "sections": {"other": 0}}]),
    ],
)
def test_a_damaged_envelope_is_refused(damage):
    envelope = to_envelope([Broadcast("a", "train", 1, {"w": torch.ones(3)})], {})
    with pytest.raises(RunError, match="not an envelope of fedshift"):
        from_envelope(damage(envelope), Broadcast)


def hostile(**scalars):
    """An envelope of one reply with these scalars, as a peer might write it."""
    good = to_envelope([Update("a", "train", 1, {"w": torch.ones(3)}, examples=3)], {})
    words = json.loads(good.text)
    words["messages"][0]["scalars"] |= scalars
    return Envelope(json.dumps(words), good.blocks)


@pytest.mark.parametrize(
    "scalars",
    [
        {"metrics": None},
        {"metrics": [1]},
        {"metrics": {"loss": 10**400}},
        {"metrics": {"loss": {"a": {"b": 1}}}},
        {"metrics": {"loss": None}},
        {"metrics": {"loss": True}},
        {"examples": 10**400},
        {"examples": 3.0},
        {"examples": None},
        {"steps": "9"},
        {"steps": -(10**400)},
        {"round": 10**400},
        {"round": True},
        {"client": None},
        {"client": ["a"]},
        {"task": {"train": 1}},
        {"facts": []},
        {"facts": {"domain": ["dark"]}},
        {"facts": {"domain": 10**400}},
        {"more": 1},
    ],
)
def test_scalars_of_another_kind_are_refused(scalars):
    with pytest.raises(RunError, match="not an envelope of fedshift, or a damaged one") as error:
        from_envelope(hostile(**scalars), Update)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"messages": ' * 50_000,
        "[]",
        "null",
        '{"messages": 3, "layouts": []}',
        '{"messages": [[]], "layouts": []}',
        '{"messages": [{"scalars": {}, "sections": []}], "layouts": []}',
        '{"messages": [{"scalars": {}, "sections": {"shared": [0]}}], "layouts": {}}',
    ],
)
def test_text_of_another_kind_is_refused(text):
    with pytest.raises(RunError, match="not an envelope of fedshift"):
        from_envelope(Envelope(text, {}), Update)


@pytest.mark.parametrize(
    "shape", [[0, 2**62, 2**62], [2**62, 2**62], [10**400], [1e400], ["3"], [3.0], [None], "3", 3]
)
def test_shapes_that_no_tensor_has_are_refused(shape):
    good = to_envelope([Update("a", "train", 1, {"w": torch.ones(3)})], {})
    with pytest.raises(RunError, match="not an envelope of fedshift"):
        from_envelope(spoil(good, layouts=[[["w", "float32", shape]]]), Update)


def test_a_block_that_is_named_a_thousand_times_takes_its_memory_once():
    good = to_envelope([Update("a", "train", 1, {"w": torch.ones(1000)})], {})
    row = json.loads(good.text)["messages"][0]
    found = from_envelope(spoil(good, messages=[row] * 1000), Update)
    memory = {update.shared["w"].untyped_storage().data_ptr() for update in found}
    assert len(found) == 1000
    assert len(memory) == 1
    assert len({id(update.shared) for update in found}) == 1
