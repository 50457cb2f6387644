"""Tensors in memory that several processes map: written once, read in place, never pickled.

``transports.pool`` passes data sets, models and updates through it, Flower's local simulation the
data sets. There is no lock: a caller must never write to a block that another process still reads
(``transports.pool`` explains how it makes sure).

A block is a file that processes map. On Linux it is a ``memfd``, which lies in memory alone: it has
no name in any directory, and the kernel frees it when the last process that maps it ends, so a
killed run leaves nothing behind. As long as the writer lives, another process of the same user can
open it as ``/proc/PID/fd/N``. Other systems have a temporary file instead, which
:meth:`Writer.close` deletes.

A writer's block grows but is never resized: when the tensors do not fit, the writer closes it and
makes a larger one. The path may be the same as before, so a reader recognises a new block by the
size in the :class:`TensorLocation`, and maps it. Views of the old block keep their mapping, and
with it their old values; none is left dangling.

Writer and reader hold *views*: tensors whose storage is the mapped memory. As long as shapes and
dtypes stay the same from one write to the next, so do the places in the block, so the writer copies
into views that it already has, and a view that a reader made earlier shows the new values.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedshift.base.tree import Tree

ALIGNED = 64  # bytes, a cache line


class TensorLocation(NamedTuple):
    """Where a tensor lies: what one process sends so that another can map the tensor."""

    writer: str  # unique over all processes
    path: str  # of the block; any process of the same user can open it
    size: int  # of the block in bytes; a new block of this writer is always larger
    offset: int  # in bytes
    shape: tuple[int, ...]
    dtype: torch.dtype


class Writer:
    """One block of shared memory; each write overwrites what the last one put there."""

    _count = itertools.count()

    def __init__(self) -> None:
        self.name = f"{os.getpid()}.{next(self._count)}"
        self.path, self.size = "", 0
        self._file: int | None = None
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []  # of what was written last
        self._locations: list[TensorLocation] = []
        self._views: list[Tensor] = []

    def write(self, tensors: Mapping[int, Tensor]) -> dict[int, TensorLocation]:
        """Copy tensors into the block and return the location of each, under the same keys."""
        kinds = [(tensor.shape, tensor.dtype) for tensor in tensors.values()]
        if kinds != self._kinds:
            self._arrange(list(tensors.values()))
            self._kinds = kinds
        filled = [tensor.detach() for tensor in tensors.values() if tensor.numel()]
        if filled:
            torch._foreach_copy_(self._views, filled)
        return dict(zip(tensors, self._locations, strict=True))

    def _arrange(self, tensors: list[Tensor]) -> None:
        """Lay tensors out one after another, each at a multiple of ``ALIGNED``; keep the views."""
        offsets, end = [], 0
        for tensor in tensors:
            offsets.append(end)
            end += -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED
        if end > self.size:
            self._grow(end)
        self._locations = [
            TensorLocation(
                self.name, self.path, self.size, offset, tuple(tensor.shape), tensor.dtype
            )
            for offset, tensor in zip(offsets, tensors, strict=True)
        ]
        self._views = [
            _view(self._memory, location) for location in self._locations if 0 not in location.shape
        ]

    def _grow(self, size: int) -> None:
        self.close()
        self.size = max(mmap.PAGESIZE, size)
        if sys.platform.startswith("linux"):  # no name: freed with the last process that maps it
            self._file = os.memfd_create("fedshift")
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="fedshift-")
        os.ftruncate(self._file, self.size)
        self._memory = mmap.mmap(self._file, self.size)

    def close(self) -> None:
        """Release the block; the kernel frees it when no process maps it any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not self.path.startswith("/proc/"):
                Path(self.path).unlink(missing_ok=True)


class Reader:
    """Maps blocks of other processes, each once, and makes views of the tensors in them."""

    def __init__(self) -> None:
        self._blocks: dict[str, tuple[int, mmap.mmap]] = {}  # size and mapping, by writer

    def read(self, location: TensorLocation) -> Tensor:
        """A view of the tensor, without a copy; its values change when the writer writes again."""
        if 0 in location.shape:
            return torch.empty(location.shape, dtype=location.dtype)
        size, block = self._blocks.get(location.writer, (0, None))
        if block is None or size != location.size:
            with Path(location.path).open("r+b") as file:
                block = mmap.mmap(file.fileno(), location.size)
            self._blocks[location.writer] = (location.size, block)
        return _view(block, location)

    def read_tree(self, entries: Mapping[str, TensorLocation]) -> Tree:
        """A view of every entry, without a copy."""
        return {name: self.read(location) for name, location in entries.items()}


def _view(memory: mmap.mmap, location: TensorLocation) -> Tensor:
    count = 1
    for side in location.shape:
        count *= side
    flat = torch.frombuffer(memory, dtype=location.dtype, count=count, offset=location.offset)
    return flat.view(location.shape)
