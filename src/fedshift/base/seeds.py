"""Random generators derived from names: every draw comes from one of (seed, names...).

Whoever needs randomness makes a generator of its own here, named by what it is for, such as
``(seed, round, client, part)``. Its numbers then depend on those names alone: not on the order in
which clients are visited, on the number of workers, or on how much another part draws. Nothing in
the project may draw from a global generator outside :func:`fork`, and no secret (a key, the noise
of a real deployment) may come from here, because everyone who knows the seed can repeat it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(*names: object) -> int:
    """A 63-bit seed from any names; adding a new name changes no other name's seed.

    The names' text is joined by the unit separator (0x1f), so that ("a", "bc") and ("ab", "c")
    differ, and hashed with BLAKE2b. Python's own ``hash`` would not do: it is salted per process.
    One bit is dropped so that the seed fits a signed 64-bit integer.

    Examples:
        >>> derive(0, "batches") == derive(0, "batches"), derive(0, "a") == derive(0, "b")
        (True, False)
    """
    text = "\x1f".join(str(n) for n in names).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(*names: object) -> torch.Generator:
    """A new torch generator (on the CPU) seeded by the names."""
    return torch.Generator().manual_seed(derive(*names))


def numpy(*names: object) -> np.random.Generator:
    """A new NumPy generator seeded by the names."""
    return np.random.default_rng(derive(*names))


@contextmanager
def fork(*names: object) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them afterwards.

    For code that takes no generator, such as dropout and the initialisation of layers.
    """
    # Not torch.manual_seed and fork_rng: on machines without CUDA they search for a device at
    # every call.
    generators = [torch.default_generator, *torch.cuda.default_generators]
    before = [one.get_state() for one in generators]
    for one in generators:
        one.manual_seed(derive(*names))
    try:
        yield
    finally:
        for one, state in zip(generators, before, strict=True):
            one.set_state(state)
