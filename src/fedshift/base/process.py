"""Settings of the process that make small nets fast; none of them moves a number.

:func:`one_thread` holds for a block and is undone after it. The other settings stay for the life of
a process (see :func:`tune_process`), so they are made only in processes that are ours: the command
line, the workers of the pool and of comparisons, and those of a deployment. A script or a notebook
that wants them calls ``fedshift.tune_process()`` itself.
"""

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
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tune_process(*, worker: bool = False) -> None:
    """Let this process train small nets faster, for the rest of its life; Linux only.

    Runs in this very process (``transport="inprocess"``) gain up to a fifth of their time. What it
    costs: memory that was used once stays with the process, and up to 1 GiB of address space is
    marked for large pages. Numbers do not move. A ``worker`` also yields to who woke it: the
    process that hands out work.
    """
    keep_freed_memory()
    if worker:
        schedule_as_batch()


@cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory: else each step maps and clears its activations anew.

    By default glibc takes every large tensor from the kernel (``mmap``) and gives it back when it
    is freed, so each training step pays for fresh, zeroed pages of the very same sizes. Here large
    blocks come from the heap (M_MMAP_MAX = 0), which grows in big strides (M_TOP_PAD) and is not
    trimmed when its end becomes free (M_TRIM_THRESHOLD): the second step finds the first one's
    memory. The price is that the process keeps its peak. There is no way back in glibc, so this is
    never done behind a user's back.
    """
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


def schedule_as_batch() -> None:
    """Let this process not push others aside when it wakes: who woke it has more to hand out.

    Under SCHED_BATCH the kernel does not interrupt the running process for one that wakes up. The
    server writes to several workers in a row; without this the first worker takes its core before
    the second has anything to do.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some containers forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
