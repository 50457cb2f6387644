from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift.base import tree
from fedshift.base.errors import ClashError, RunError

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def tensors(draw):
    """Any dtype, 0 to 4 dimensions, empty ones included, sometimes channels-last or strided."""
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    seed = draw(st.integers(0, 2**20))
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 20
    value = noise.to(draw(st.sampled_from(DTYPES)))
    if value.dim() == 4 and draw(st.booleans()):
        value = value.contiguous(memory_format=torch.channels_last)
    if value.dim() == 2 and draw(st.booleans()):
        value = value.T
    return value


def trees():
    return st.dictionaries(NAMES, tensors(), max_size=6)


@given(trees(), st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))
def test_any_tree_survives_bytes(a, meta):
    b, found = tree.from_bytes(tree.to_bytes(a, meta))
    assert list(b) == list(a)
    assert found == meta
    for key, value in a.items():
        assert b[key].dtype == value.dtype
        assert b[key].shape == value.shape
        assert torch.equal(b[key], value)


def test_what_is_not_a_number_survives_bytes():
    a = {"odd": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])}
    b, _ = tree.from_bytes(tree.to_bytes(a))
    assert torch.equal(a["odd"].view(torch.int32), b["odd"].view(torch.int32))


@given(trees())
def test_bytes_are_counted_by_element(a):
    sizes = {torch.float64: 8, torch.int64: 8, torch.float32: 4, torch.int32: 4}
    sizes |= {torch.float16: 2, torch.bfloat16: 2, torch.int16: 2}
    expected = 0
    for value in a.values():
        count = 1
        for n in value.shape:
            count *= n
        expected += count * sizes.get(value.dtype, 1)
    assert tree.nbytes(a) == expected


@pytest.mark.parametrize("blob", [b"", b"short", b"\x10" + b"\0" * 40])
def test_other_bytes_are_refused(blob):
    with pytest.raises(RunError, match="not a fedshift tensor file"):
        tree.from_bytes(blob)


def test_a_damaged_file_is_refused():
    blob = tree.to_bytes({"w": torch.arange(10.0)})
    with pytest.raises(RunError, match="damaged"):
        tree.from_bytes(blob[:-7])


def test_arithmetic_is_entrywise():
    a, b = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([10.0, 20.0])}
    assert tree.add(a, b)["w"].tolist() == [11.0, 22.0]
    assert tree.add(a, b, 0.5)["w"].tolist() == [6.0, 12.0]
    assert tree.sub(a, b)["w"].tolist() == [-9.0, -18.0]
    assert tree.zeros_like(a)["w"].tolist() == [0.0, 0.0]
    assert a["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("operation", [tree.add, tree.sub])
def test_trees_of_other_entries_do_not_mix(operation):
    with pytest.raises(KeyError, match="trees differ in 2 entries, for example \\['u', 'w'\\]"):
        operation({"w": torch.ones(1)}, {"u": torch.ones(1)})


def test_a_clone_shares_no_memory_and_is_contiguous():
    w = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    copy = tree.clone({"w": w})["w"]
    assert torch.equal(copy, w)
    assert copy.is_contiguous()
    assert not copy.requires_grad
    copy.zero_()
    assert not torch.equal(copy, w)


def test_names_go_below_a_prefix_and_come_back():
    a = {"w": torch.ones(1), "deep/w": torch.zeros(1)}
    below = tree.prefixed("part", a)
    assert list(below) == ["part/w", "part/deep/w"]
    assert list(tree.under("part", below | {"particle/w": torch.ones(1)})) == ["w", "deep/w"]


def test_pick_keeps_the_order_of_the_tree():
    a = {k: torch.ones(1) for k in "cab"}
    assert list(tree.pick(a, ["a", "b", "c", "z"])) == ["c", "a", "b"]


def test_two_writers_of_one_entry_are_an_error():
    with pytest.raises(ClashError, match="two writers of one entry: w"):
        tree.merge([{"w": torch.ones(1)}, {"u": torch.ones(1)}, {"w": torch.ones(1)}])
