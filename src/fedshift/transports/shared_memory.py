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


class TensorLocation(NamedTuple):
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
        self._locations: list[TensorLocation] = []
        self._views: list[Tensor] = []

    def write(self, tensors: Mapping[int, Tensor]) -> dict[int, TensorLocation]:
        """Copy tensors into the block; the same keys, where each of them lies."""
        kinds = [(tensor.shape, tensor.dtype) for tensor in tensors.values()]
        if kinds != self._kinds:
            self._arrange(list(tensors.values()))
            self._kinds = kinds
        filled = [tensor.detach() for tensor in tensors.values() if tensor.numel()]
        if filled:
            torch._foreach_copy_(self._views, filled)
        return dict(zip(tensors, self._locations, strict=True))

    def _arrange(self, tensors: list[Tensor]) -> None:
        """Give each tensor its place in the block."""
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

    def read(self, location: TensorLocation) -> Tensor:
        """The tensor in place, valid until its writer writes again."""
        if 0 in location.shape:
            return torch.empty(location.shape, dtype=location.dtype)
        size, block = self._blocks.get(location.writer, (0, None))
        if block is None or size != location.size:
            with Path(location.path).open("r+b") as file:
                block = mmap.mmap(file.fileno(), location.size)
            self._blocks[location.writer] = (location.size, block)
        return _view(block, location)

    def read_tree(self, entries: Mapping[str, TensorLocation]) -> Tree:
        """Every entry in place."""
        return {name: self.read(location) for name, location in entries.items()}


def _view(memory: mmap.mmap, location: TensorLocation) -> Tensor:
    count = 1
    for side in location.shape:
        count *= side
    flat = torch.frombuffer(memory, dtype=location.dtype, count=count, offset=location.offset)
    return flat.view(location.shape)
