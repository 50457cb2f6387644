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
    # Not torch.manual_seed and fork_rng: without a CUDA device they look for one, every time.
    generators = [torch.default_generator, *torch.cuda.default_generators]
    before = [one.get_state() for one in generators]
    for one in generators:
        one.manual_seed(derive(*names))
    try:
        yield
    finally:
        for one, state in zip(generators, before, strict=True):
            one.set_state(state)
