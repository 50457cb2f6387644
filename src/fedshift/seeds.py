"""Randomness by name: every draw comes from a generator derived from (seed, names...)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(*names: object) -> int:
    """A 63-bit seed from any names; a new name shifts nobody else's numbers.

    Examples:
        >>> derive(0, "batches") == derive(0, "batches"), derive(0, "a") == derive(0, "b")
        (True, False)
    """
    text = "\x1f".join(str(n) for n in names).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(*names: object) -> torch.Generator:
    """A torch generator of its own."""
    return torch.Generator().manual_seed(derive(*names))


def numpy(*names: object) -> np.random.Generator:
    """A NumPy generator of its own."""
    return np.random.default_rng(derive(*names))


@contextmanager
def fork(*names: object) -> Iterator[None]:
    """Seed torch's global generator (dropout, initialisation) in the block, restore it after."""
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
        # Not torch.manual_seed: without a CUDA device it queues a call for one, every time.
        torch.default_generator.manual_seed(derive(*names))
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(derive(*names))
        yield
