"""The reply stack: one round's replies in memory, laid out so that rules read them as matrices.

``engine.round`` copies the replies of a round into a :class:`ReplyStack` when the method needs all
of them at once; rules that compare clients layer by layer (FDSE's consensus, CSAC's fusion) read
them by :func:`blocks`. Nothing here may build a second copy of all replies: for many clients that
is most of the server's memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedshift.base import tree
from fedshift.base.process import on_all_cores
from fedshift.base.tree import Tree
from fedshift.core.message import Update

MANY = 20  # number of clients from which threads pay off
WIDTH = 2**16  # columns that a sum handles at a time, so that they stay in one core's cache


class ReplyStack:
    """Memory for the shared entries of all replies of one round, grouped by entry.

    For each entry of the net there is one tensor (size, *shape of the entry); the reply that
    arrives as number k is copied into row k of every such tensor. The n versions of an entry
    therefore lie one after another at equal distances, and flattened they are a matrix (n, P)
    without another copy, which is what pairwise distances and Gram matrices need. The updates that
    :meth:`keep` returns hold views of these rows, so rules that only look at one update at a time
    notice no difference. The tensors are allocated with the first reply. Personal entries and
    payload are simply cloned.

    Copying is needed in any case: a transport may overwrite a reply's tensors when the next one is
    requested (``Transport.reply_lifetime``).
    """

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._memory: Tree = {}  # (size, *shape) for each entry

    def keep(self, update: Update) -> Update:
        """Copy a reply into the next row; returns the update with views of that row."""
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
    """The clients' versions of one entry, flattened, as matrices (n, width) from left to right.

    Each block is a view if the versions lie at equal distances in one memory, as in a
    :class:`ReplyStack`, and a copy otherwise. The last block may be narrower. Working block by
    block keeps intermediate results in the processor's cache.
    """
    flat = [version.flatten() for version in versions]
    whole = _in_place(flat)
    for a in range(0, max(1, flat[0].numel()), width):
        if whole is None:
            yield torch.stack([row[a : a + width] for row in flat])
        else:
            yield whole[:, a : a + width]


def _in_place(flat: Sequence[Tensor]) -> Tensor | None:
    """Rows that lie at equal distances in one storage, as a matrix (n, P) without a copy.

    None if they do not. Compares storage addresses and offsets, which takes no pass over the data.
    """
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
    """``sum_k weights_k versions_k``, in the shape of one version and the dtype of ``weights``."""
    columns = (block.to(weights.dtype).t() for block in blocks(versions, WIDTH))
    parts = [torch.mv(column, weights) for column in columns]
    return torch.cat(parts).view(versions[0].shape)


def layer_by_layer(
    work: Callable[[Sequence[str]], Tree],
    layers: Iterable[Sequence[str]],
    updates: Sequence[Update],
) -> Tree:
    """Apply ``work`` to each layer's entries and merge the results.

    From :data:`MANY` clients on, layers are spread over all cores, the largest first so that none
    is left to the end. One thread works on one layer, so the bits of the result do not depend on
    the number of threads.
    """

    def size(keys: Sequence[str]) -> int:
        return tree.nbytes(tree.pick(updates[0].shared, keys))

    spread = on_all_cores if len(updates) >= MANY else map
    return tree.merge(spread(work, sorted(layers, key=size, reverse=True)))
