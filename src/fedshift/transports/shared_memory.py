"""Tensors in memory that several processes see: written once, read in place, never pickled."""

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


class Where(NamedTuple):
    """Where a tensor lies; small enough to send along with every message."""

    writer: str
    path: str  # of its block; any process of this user can open it
    size: int  # of the block, which only ever grows
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Writer:
    """One block that grows when it must; what it held before is overwritten by the next write."""

    _count = itertools.count()

    def __init__(self) -> None:
        self.name = f"{os.getpid()}.{next(self._count)}"
        self.path, self.size = "", 0
        self._file: int | None = None
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []  # of what was written last
        self._wheres: list[Where] = []
        self._views: list[Tensor] = []

    def write(self, tensors: Mapping[int, Tensor]) -> dict[int, Where]:
        """Copy tensors into the block; the same keys, where each of them lies."""
        kinds = [(tensor.shape, tensor.dtype) for tensor in tensors.values()]
        if kinds != self._kinds:
            self._arrange(list(tensors.values()))
            self._kinds = kinds
        filled = [tensor.detach() for tensor in tensors.values() if tensor.numel()]
        if filled:
            torch._foreach_copy_(self._views, filled)
        return dict(zip(tensors, self._wheres, strict=True))

    def _arrange(self, tensors: list[Tensor]) -> None:
        """Give each tensor its place in the block."""
        places, end = [], 0
        for tensor in tensors:
            places.append(end)
            end += -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED
        if end > self.size:
            self._grow(end)
        self._wheres = [
            Where(self.name, self.path, self.size, place, tuple(tensor.shape), tensor.dtype)
            for place, tensor in zip(places, tensors, strict=True)
        ]
        self._views = [_view(self._memory, where) for where in self._wheres if 0 not in where.shape]

    def _grow(self, size: int) -> None:
        self.close()
        self.size = max(mmap.PAGESIZE, size)
        if sys.platform.startswith("linux"):  # anonymous: gone with the last process that has it
            self._file = os.memfd_create("fedshift")
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="fedshift-")
        os.ftruncate(self._file, self.size)
        self._memory = mmap.mmap(self._file, self.size)

    def close(self) -> None:
        """Give the memory back once nobody looks at it any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not self.path.startswith("/proc/"):
                Path(self.path).unlink(missing_ok=True)


class Reader:
    """Views of tensors that other processes have written."""

    def __init__(self) -> None:
        self._blocks: dict[str, tuple[int, mmap.mmap]] = {}  # by writer, with the size

    def read(self, where: Where) -> Tensor:
        """The tensor in place, valid until its writer writes again."""
        if 0 in where.shape:
            return torch.empty(where.shape, dtype=where.dtype)
        size, block = self._blocks.get(where.writer, (0, None))
        if block is None or size != where.size:
            with Path(where.path).open("r+b") as file:
                block = mmap.mmap(file.fileno(), where.size)
            self._blocks[where.writer] = (where.size, block)
        return _view(block, where)

    def read_tree(self, entries: Mapping[str, Where]) -> Tree:
        """Every entry in place."""
        return {name: self.read(where) for name, where in entries.items()}


def _view(memory: mmap.mmap, where: Where) -> Tensor:
    count = 1
    for side in where.shape:
        count *= side
    flat = torch.frombuffer(memory, dtype=where.dtype, count=count, offset=where.offset)
    return flat.view(where.shape)
