"""A round's replies in one memory, and reading them as matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.core import reply_stack
from fedshift.core.message import Update
from fedshift.core.reply_stack import ReplyStack, blocks, weighted_sum
from fedshift.engine.round import play_round
from fedshift.testing import start
from fedshift.transports.wire import Wire

FOUR = torch.arange(24.0).view(4, 6)


def replies(n: int = 4) -> list[Update]:
    g = torch.Generator().manual_seed(0)
    return [
        Update(
            f"c{i}",
            "train",
            1,
            {"w": torch.randn(3, 5, generator=g), "n": torch.tensor(i)},
            {"own": torch.randn(2, generator=g)},
            {"part/x": torch.randn(2, generator=g)},
            examples=i,
        )
        for i in range(n)
    ]


def test_a_kept_reply_is_the_same_in_memory_of_its_own():
    sent = replies()
    before = [[{k: v.clone() for k, v in tree.items()} for tree in u.sections()] for u in sent]
    room = ReplyStack(4)
    kept = [room.keep(update) for update in sent]
    for update in sent:
        for tree in update.sections():
            for value in tree.values():
                value.zero_()
    for update, sections, was in zip(kept, before, sent, strict=True):
        assert update.scalars() == was.scalars()
        for tree, expected in zip(update.sections(), sections, strict=True):
            assert list(tree) == list(expected)
            assert all(torch.equal(tree[k], v) for k, v in expected.items())
            assert all(v.is_contiguous() for v in tree.values())


@pytest.mark.parametrize("width", [4, 15, 100])
def test_what_lies_in_a_reply_stack_is_read_in_place(width):
    room = ReplyStack(6)  # two of them never answer
    rows = [room.keep(update).shared["w"] for update in replies()]
    expected = np.stack([row.numpy().ravel() for row in rows])
    found = list(blocks(rows, width))
    np.testing.assert_array_equal(torch.cat(found, 1).numpy(), expected)
    assert {block.untyped_storage().data_ptr() for block in found} == {
        rows[0].untyped_storage().data_ptr()
    }


@pytest.mark.parametrize(
    "rows",
    [
        [torch.arange(6.0) + i for i in range(3)],
        [(i + torch.arange(24.0)).view(4, 6)[i] for i in range(3)],  # as if in one memory
        [FOUR[i] for i in (0, 1, 3)],  # not at equal distances
        [FOUR[i] for i in (2, 1, 0)],
        [FOUR.flatten()[i : i + 6] for i in (0, 3, 6)],  # one over the other
        [torch.ones(6)] * 3,
        [*torch.arange(18.0).view(6, 3).t()],  # not contiguous
        [torch.arange(6.0)],
        [torch.empty(0)] * 2,
    ],
)
def test_what_lies_elsewhere_is_read_all_the_same(rows):
    expected = np.stack([row.numpy() for row in rows])
    np.testing.assert_array_equal(torch.cat([*blocks(rows, 4)], 1).numpy(), expected)


@pytest.mark.parametrize("width", [2, 2**16])
def test_a_weighted_sum_has_the_precision_of_its_weights(width, monkeypatch):
    monkeypatch.setattr(reply_stack, "WIDTH", width)
    rows = [update.shared["w"] for update in replies(3)]
    c = np.array([0.2, -1.5, 3.0])
    expected = np.tensordot(c, np.stack([row.double().numpy() for row in rows]), 1)
    exact = weighted_sum(rows, torch.from_numpy(c))
    assert exact.dtype == torch.float64
    assert exact.shape == rows[0].shape
    np.testing.assert_allclose(exact.numpy(), expected, rtol=1e-12)
    assert weighted_sum(rows, torch.from_numpy(c).float()).dtype == torch.float32


@pytest.mark.parametrize("wire", [False, True])
def test_a_round_puts_its_replies_on_a_stack_whatever_brought_them(wire):
    """So that a rule meets the same memory, and gives the same bits, on every transport."""
    session = start("csac")
    if wire:
        session.transport = Wire(session.transport.worker)
    updates = play_round(session.server, session.transport, session.record)
    for key in session.server.shared:
        rows = [update.shared[key] for update in updates]
        copied = [b for b in blocks(rows, 2**19) if b.data_ptr() != rows[0].data_ptr()]
        assert not copied, key
