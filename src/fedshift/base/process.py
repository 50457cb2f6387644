"""Settings of the process that make small nets fast; none of them moves a number."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


U = TypeVar("U")


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h


MEGABYTE = 1 << 20


HEAP = 1024 * MEGABYTE  # addresses for tensors; more than that comes in small pages


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: faster for small nets, and the same sums on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def keep_memory() -> None:
    """Let glibc keep freed memory: else each step maps and clears its activations anew."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2047 * MEGABYTE)
        libc.mallopt(M_TOP_PAD, 64 * MEGABYTE)
        _take_large_pages(libc)


def _take_large_pages(libc: ctypes.CDLL) -> None:
    """Ask for large pages where the heap will grow, which is not touched yet and costs nothing.

    A convolution walks through megabytes: with pages of 4 kB it waits for their addresses. Kernels
    that have no large pages, or give them to everybody, take no notice.
    """
    libc.malloc.restype = ctypes.c_void_p
    start = libc.malloc(ctypes.c_size_t(HEAP))
    if start is None:
        return
    first, last = -(-start // mmap.PAGESIZE), (start + HEAP) // mmap.PAGESIZE
    length = ctypes.c_size_t((last - first) * mmap.PAGESIZE)
    libc.madvise(ctypes.c_void_p(first * mmap.PAGESIZE), length, mmap.MADV_HUGEPAGE)
    libc.free(ctypes.c_void_p(start))


def on_all_cores(work: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """``work`` on each item in threads; torch and NumPy let go of the interpreter while they count.

    One thread works on an item, so the numbers do not depend on how many threads there are.
    """
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(work, items))


def work_in_batches() -> None:
    """Let this process not push others aside when it wakes: who wakes it has more mail to send."""
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some containers forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
