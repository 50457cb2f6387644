"""A site's side of secure aggregation: its secrets of one round, and what it reveals of them.

:class:`SecureAggregation` calls it at the client; ``pairwise`` and ``read_share`` also serve the
server. ``secure`` describes the exchanges in order. The rule that a site must never break: of any
site it reveals a share of the own mask *or* of the mask key, never both, because the server could
then unmask that site's update.

Layout of a secret share: INDEX bytes of the polynomial's position, then ``shamir.SIZE`` bytes of
its value, both little-endian; SHARE bytes in all. What one site sends another is a *box*: a share
of b_k, then a share of the mask key, encrypted together, plus the 16 bytes of the Poly1305 tag by
which the receiver notices a change; BOX bytes in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedshift import RunError, Tree, tree
from fedshift.privacy import masks
from fedshift.privacy.masks import Vector, to_bytes, to_tensor
from fedshift.privacy.shamir import SIZE, SecretShare, split

INDEX = 2  # bytes of a share's position
SHARE = INDEX + SIZE
BOX = 2 * SHARE + 16  # two shares, encrypted and authenticated
UNREADABLE = bytes(SHARE)  # a share at position 0, where none is


@dataclass(frozen=True)
class Secrets:
    """A site's secrets of one round, all derived from ``seed``; none is kept between messages."""

    name: str
    seed: bytes

    @property
    def own_mask(self) -> bytes:
        """b_k, the seed of the site's own mask, which no other site knows."""
        return masks.derive(self.seed, "own mask")

    @property
    def mask_key(self) -> bytes:
        """Private key from which each pair of sites derives its common mask."""
        return masks.derive(self.seed, "mask key")

    @property
    def encryption_key(self) -> bytes:
        """Private key from which each pair of sites derives the key of its boxes."""
        return masks.derive(self.seed, "encryption key")

    def keys(self) -> Tree:
        """First exchange: both public keys, and a commitment to the seed of the own mask."""
        pairs = {"encryption": self.encryption_key, "mask": self.mask_key}
        keys = {kind: to_tensor(masks.public_key(key)) for kind, key in pairs.items()}
        return keys | {"commitment": to_tensor(masks.commitment(self.own_mask))}

    def shares(self, keys: Mapping[str, Tensor], threshold: int) -> Tree:
        """Second exchange: for each site a box with a share of b_k and one of the mask key."""
        positions = range(1, len(keys) + 1)
        draw = masks.Draws(masks.derive(self.seed, "shares"))
        whole = (self.own_mask, self.mask_key)
        own, pair = (split(int.from_bytes(s, "little"), positions, threshold, draw) for s in whole)
        return {
            peer: to_tensor(
                masks.encrypt(
                    self._channel(keys[peer], self.name, peer),
                    write_share((position, a)) + write_share((position, b)),
                )
            )
            for peer, position, a, b in zip(sorted(keys), positions, own, pair, strict=True)
        }

    def _channel(self, public: Tensor, sender: str, receiver: str) -> bytes:
        common = masks.agree(self.encryption_key, to_bytes(public))
        return masks.derive(common, "share", sender, receiver)

    def mask(self, peers: Mapping[str, Tensor], size: int) -> Vector:
        """Training: the sum of the site's own mask and of its pairwise masks with the others."""
        out = pairwise(self.mask_key, self.name, peers, size)
        return np.add(out, masks.expand(self.own_mask, size), out=out)

    def unmask(self, payload: Tree, answered: set[str], needed: Callable[[int], int]) -> Tree:
        """Third exchange: shares of b_k of sites that replied, of the mask key of the others.

        Never both of one site, and an error if fewer than ``needed`` sites replied. A box that
        cannot be read is answered by ``UNREADABLE``, so that its sender is blamed, not this site.
        """
        keys, boxes = tree.under("encryption", payload), tree.under("share", payload)
        if len(answered) < needed(len(keys)) or not answered <= boxes.keys():
            raise RunError(
                f"client {self.name} is asked to unmask the sum of {len(answered)} sites, and it "
                f"tells nothing for fewer than {needed(len(keys))} of {len(keys)}"
            )
        out: Tree = {}
        for peer, box in boxes.items():
            try:
                text = masks.decrypt(self._channel(keys[peer], peer, self.name), to_bytes(box))
            except RunError:
                text = 2 * UNREADABLE
            own, pair = text[:SHARE], text[SHARE:]
            kind, share = ("self", own) if peer in answered else ("pair", pair)
            out[f"{kind}/{peer}"] = to_tensor(share)
        return out


def pairwise(key: bytes, name: str, peers: Mapping[str, Tensor], size: int) -> Vector:
    """sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj): one of a pair adds it, the other subtracts."""
    out = np.zeros(size, dtype=np.uint64)
    for peer in sorted(peers.keys() - {name}):
        common = masks.derive(masks.agree(key, to_bytes(peers[peer])), "mask")
        change = np.add if peer > name else np.subtract
        change(out, masks.expand(common, size), out=out)
    return out


def write_share(share: SecretShare) -> bytes:
    """A share as bytes: position, then value."""
    return share[0].to_bytes(INDEX, "little") + share[1].to_bytes(SIZE, "little")


def read_share(data: bytes) -> SecretShare:
    """Inverse of :func:`write_share`."""
    return int.from_bytes(data[:INDEX], "little"), int.from_bytes(data[INDEX:], "little")
