"""Images that are almost the same: copies saved again, resized or brightened, across splits, sites.

``inspection`` calls it. A copy of a test image among the training images makes a score look better
than it is, and equal bytes find only the crudest of them. Two steps: a perceptual hash of 64 bits
(the signs of the lowest frequencies, as in pHash) proposes pairs, and the correlation of two small
grey versions confirms them, so that simple pictures with equal hashes are not taken for copies.
Pairs are searched across splits and across domains only; within a split a copy leaks nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedshift.base.process import on_all_cores
from fedshift.data.samples import Domain

SPLIT_NAMES = ("train", "val", "test")
SIDE = 32  # pixels of the small grey version that is hashed
HALF = SIDE // 2  # of the one that is compared
LOW = 8  # frequencies a side that the hash looks at
NEAR = 6  # bits by which the hashes of copies may differ
ALIKE = 0.98  # correlation of the small versions of copies
CROWD = 2000  # images of one piece of hash: more are not compared with each other
BLOCK = 4096  # images or pairs at a time
SHOWN = 20  # pairs that are named
Array = NDArray[Any]


@dataclass(frozen=True)
class NearDuplicates:
    """How many images have a near copy elsewhere, by place, and some of the pairs."""

    counts: Mapping[str, int] = field(default_factory=dict)
    pairs: Sequence[tuple[str, str]] = ()  # ids of the images
    skipped: int = 0  # images in crowds of look-alikes that were not compared


def find_near(domains: Mapping[str, Domain], ids: Mapping[str, Sequence[str]]) -> NearDuplicates:
    """Near copies across splits and domains; nothing for vectors.

    A place counts the images of its second part that have a near copy in the first.
    """
    if any(domain.x.dim() != 4 for domain in domains.values()):
        return NearDuplicates()
    names = list(domains)
    small = np.concatenate([shrink(d.x.numpy()) for d in domains.values()])  # (N, SIDE, SIDE)
    of = np.repeat(np.arange(len(names)), [len(d.y) for d in domains.values()])
    split = np.concatenate([d.split.numpy() for d in domains.values()])
    whole = np.concatenate([[f"{n}: {i}" for i in ids[n]] for n in names]) if len(of) else of
    candidates, skipped = near_pairs(hashes(small))
    apart = (of[candidates[:, 0]] != of[candidates[:, 1]]) | (
        split[candidates[:, 0]] != split[candidates[:, 1]]
    )
    pairs = _alike(candidates[apart], small)
    found: dict[str, set[int]] = {}
    for n, (a, b) in enumerate(pairs):
        first, second = sorted((int(a), int(b)), key=lambda row: (split[row], of[row]))
        pairs[n] = first, second
        for place in _places((of[first], split[first]), (of[second], split[second]), names):
            found.setdefault(place, set()).add(second)
    counts = Counter({place: len(rows) for place, rows in sorted(found.items())})
    shown = [(str(whole[a]), str(whole[b])) for a, b in pairs[:SHOWN]]
    return NearDuplicates(dict(counts), shown, skipped)


def _places(one: tuple[int, int], other: tuple[int, int], names: Sequence[str]) -> Iterator[str]:
    """Where a pair lies; ``one`` is of the earlier split."""
    splits = f"{SPLIT_NAMES[one[1]]}/{SPLIT_NAMES[other[1]]}"
    if one[0] == other[0]:
        yield f"across {splits} of {names[one[0]]}"
    else:
        yield "across domains"
        if one[1] != other[1]:
            yield f"across {splits} of two domains"


def shrink(x: Array) -> NDArray[np.uint8]:
    """Grey versions (N, 32, 32) of images (N, H, W, 3)."""
    out = np.empty((len(x), SIDE, SIDE), dtype=np.uint8)
    on_all_cores(partial(_shrink_some, x, out), range(0, len(x), 256))
    return out


def _shrink_some(x: Array, out: Array, start: int) -> None:
    for i in range(start, min(start + 256, len(x))):
        grey = Image.fromarray(np.asarray(x[i])).convert("L")
        out[i] = np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BOX))


def hashes(small: Array) -> NDArray[np.uint64]:
    """64 bits per image (N,): which of the 64 lowest frequencies lie above their median."""
    from scipy.fft import dctn  # noqa: PLC0415  slow to import

    found = [np.empty(0, dtype=np.uint64)]
    for start in range(0, len(small), BLOCK):
        some = small[start : start + BLOCK].astype(np.float32)
        low = dctn(some, axes=(1, 2))[:, :LOW, :LOW].reshape(len(some), -1)  # (B, 64)
        low[:, 0] = 0  # brightness
        bits = low > np.median(low, axis=1, keepdims=True)
        found.append(np.packbits(bits, axis=1).view(">u8").astype(np.uint64).ravel())
    return np.concatenate(found)


def near_pairs(marks: NDArray[np.uint64]) -> tuple[Array, int]:
    """Pairs (M, 2) of hashes that differ in at most NEAR bits, and how many were not compared.

    The 64 bits are cut into NEAR + 1 pieces: two hashes that differ in NEAR bits agree in at least
    one piece. So only hashes that share a piece are compared, instead of all with all.
    """
    found: list[Array] = [np.empty((0, 2), dtype=np.int64)]
    crowded: set[int] = set()
    edges = np.linspace(0, 64, NEAR + 2).astype(int)
    for low, high in pairwise(edges):
        mask = np.uint64(2 ** int(high - low) - 1)
        pieces = (marks >> np.uint64(low)) & mask
        order = np.argsort(pieces, kind="stable")
        bounds = np.flatnonzero(np.diff(pieces[order])) + 1
        for group in np.split(order, bounds):
            if len(group) > CROWD:
                crowded.update(group[CROWD:].tolist())
            found.append(_close(marks, np.sort(group[:CROWD])))
    return np.unique(np.concatenate(found), axis=0), len(crowded)


def _close(marks: NDArray[np.uint64], rows: Array) -> Array:
    """Pairs (M, 2) among ``rows`` whose hashes differ in at most NEAR bits."""
    if len(rows) < 2:
        return np.empty((0, 2), dtype=np.int64)
    apart = np.bitwise_count(marks[rows][:, None] ^ marks[rows][None, :])
    a, b = np.nonzero(np.triu(apart <= NEAR, k=1))
    return np.stack([rows[a], rows[b]], axis=1)


def _centred(small: Array) -> NDArray[np.float32]:
    """Halved versions (N, 256) of mean 0 and length 1; a picture of one colour becomes 0."""
    blocks = small.reshape(len(small), HALF, 2, HALF, 2).astype(np.float32)
    flat = blocks.mean(axis=(2, 4)).reshape(len(small), HALF * HALF)
    flat = flat - flat.mean(axis=1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    out: NDArray[np.float32] = np.divide(flat, length, out=np.zeros_like(flat), where=length > 1)
    return out


def _alike(pairs: Array, small: Array) -> Array:
    """The pairs whose small versions correlate."""
    parts = np.array_split(pairs, len(pairs) // BLOCK + 1)
    alike = [correlation(small[p[:, 0]], small[p[:, 1]]) >= ALIKE for p in parts]
    return pairs[np.concatenate(alike)]


def correlation(one: Array, other: Array) -> NDArray[np.float32]:
    """Pearson's correlation (N,) of small versions (N, 32, 32), halved, pair by pair."""
    found: NDArray[np.float32] = (_centred(one) * _centred(other)).sum(axis=1)
    return found
