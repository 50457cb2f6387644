"""A site's side of secure aggregation: its secrets of one round, and what it tells of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedshift import RunError, Tree, tree
from fedshift.privacy import masks
from fedshift.privacy.masks import Vector, to_bytes, to_tensor
from fedshift.privacy.shamir import SIZE, SecretShare, split

INDEX = 2  # bytes of a share's place
SHARE = INDEX + SIZE
BOX = 2 * SHARE + 16  # two of them, encrypted and signed


@dataclass(frozen=True)
class Secrets:
    """Everything derives from one seed, so nothing has to be kept between two messages."""

    name: str
    seed: bytes

    @property
    def own_mask(self) -> bytes:
        """b_k, the seed of the mask that no other site knows."""
        return masks.derive(self.seed, "own mask")

    @property
    def mask_key(self) -> bytes:
        """Private key by which pairs of sites agree on their masks."""
        return masks.derive(self.seed, "mask key")

    @property
    def encryption_key(self) -> bytes:
        """Private key by which shares are encrypted."""
        return masks.derive(self.seed, "encryption key")

    def keys(self) -> Tree:
        """Both public keys."""
        pairs = {"encryption": self.encryption_key, "mask": self.mask_key}
        return {kind: to_tensor(masks.public_key(key)) for kind, key in pairs.items()}

    def shares(self, keys: Mapping[str, Tensor], threshold: int) -> Tree:
        """For each site, one share of b_k and one of the mask key, which only it can read."""
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
        """What hides this site's vector: its own mask and those it has in common with others."""
        out = pairwise(self.mask_key, self.name, peers, size)
        return np.add(out, masks.expand(self.own_mask, size), out=out)

    def unmask(self, letter: Tree, answered: set[str], needed: Callable[[int], int]) -> Tree:
        """Shares of b_k of who answered, of the mask key of who did not; never both of one."""
        keys, boxes = tree.under("encryption", letter), tree.under("share", letter)
        if len(answered) < needed(len(keys)) or not answered <= boxes.keys():
            raise RunError(
                f"client {self.name} is asked to unmask the sum of {len(answered)} sites, and it "
                f"tells nothing for fewer than {needed(len(keys))} of {len(keys)}"
            )
        out: Tree = {}
        for peer, box in boxes.items():
            text = masks.decrypt(self._channel(keys[peer], peer, self.name), to_bytes(box))
            own, pair = text[:SHARE], text[SHARE:]
            kind, share = ("self", own) if peer in answered else ("pair", pair)
            out[f"{kind}/{peer}"] = to_tensor(share)
        return out


def pairwise(key: bytes, name: str, peers: Mapping[str, Tensor], size: int) -> Vector:
    """sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj): of one pair, one adds what the other takes."""
    out = np.zeros(size, dtype=np.uint64)
    for peer in sorted(peers.keys() - {name}):
        common = masks.derive(masks.agree(key, to_bytes(peers[peer])), "mask")
        change = np.add if peer > name else np.subtract
        change(out, masks.expand(common, size), out=out)
    return out


def write_share(share: SecretShare) -> bytes:
    """Place and value."""
    return share[0].to_bytes(INDEX, "little") + share[1].to_bytes(SIZE, "little")


def read_share(data: bytes) -> SecretShare:
    """Inverse of :func:`write_share`."""
    return int.from_bytes(data[:INDEX], "little"), int.from_bytes(data[INDEX:], "little")
