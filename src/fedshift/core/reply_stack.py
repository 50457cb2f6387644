"""Where the server keeps a round's replies, so that a rule can read them as matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedshift.base import tree
from fedshift.base.process import on_all_cores
from fedshift.base.tree import Tree
from fedshift.core.message import Update

MANY = 20  # clients from which on threads are worth their while
WIDTH = 2**16  # columns of a sum at a time: the sum stays in a core's own cache


class ReplyStack:
    """Memory for the replies of one round; an entry's versions lie in it one after another."""

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._memory: Tree = {}  # (places, ...) of each entry

    def keep(self, update: Update) -> Update:
        """The same update in memory of its own."""
        row, self._taken = self._taken, self._taken + 1
        shared: Tree = {}
        for key, value in update.shared.items():
            if key not in self._memory:
                self._memory[key] = value.new_empty((self._size, *value.shape))
            shared[key] = self._memory[key][row].copy_(value)
        return dataclasses.replace(
            update,
            shared=shared,
            personal=tree.clone(update.personal),
            payload=tree.clone(update.payload),
        )


def blocks(versions: Sequence[Tensor], width: int) -> Iterator[Tensor]:
    """Versions of one entry, flat, as matrices (n, width) from the first column to the last.

    In place where they lie at equal distances, as on a :class:`Shelf`; else each block is a copy.
    """
    flat = [version.flatten() for version in versions]
    whole = _in_place(flat)
    for a in range(0, max(1, flat[0].numel()), width):
        if whole is None:
            yield torch.stack([row[a : a + width] for row in flat])
        else:
            yield whole[:, a : a + width]


def _in_place(flat: Sequence[Tensor]) -> Tensor | None:
    """Rows at equal distances of one memory as a matrix (n, P), without a copy."""
    first, size = flat[0], flat[0].numel()
    step = flat[1].storage_offset() - first.storage_offset() if len(flat) > 1 else size
    memory = first.untyped_storage().data_ptr()
    if step < size or any(
        row.untyped_storage().data_ptr() != memory
        or row.storage_offset() != first.storage_offset() + i * step
        for i, row in enumerate(flat)
    ):
        return None
    return first.as_strided((len(flat), size), (step, 1))


def weighted_sum(versions: Sequence[Tensor], weights: Tensor) -> Tensor:
    """``sum_k weights_k versions_k`` in the shape of a version and the precision of ``weights``."""
    columns = (block.to(weights.dtype).t() for block in blocks(versions, WIDTH))
    parts = [torch.mv(column, weights) for column in columns]
    return torch.cat(parts).view(versions[0].shape)


def layer_by_layer(
    work: Callable[[Sequence[str]], Tree],
    layers: Iterable[Sequence[str]],
    updates: Sequence[Update],
) -> Tree:
    """What ``work`` makes of each layer's entries; of many clients on all cores, largest first.

    One thread works on a layer, so the bits do not depend on how many there are.
    """

    def size(keys: Sequence[str]) -> int:
        return tree.nbytes(tree.pick(updates[0].shared, keys))

    spread = on_all_cores if len(updates) >= MANY else map
    return tree.merge(spread(work, sorted(layers, key=size, reverse=True)))
