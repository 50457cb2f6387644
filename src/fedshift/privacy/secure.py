"""Secure aggregation: the server learns the sum of the updates and no single update.

Bonawitz et al., CCS 2017, Figure 4 against an honest-but-curious server (no signatures): pairwise
masks that cancel in the sum, a mask of each site's own, and shares of both secrets so that sites
may drop out. The round calls the part below; its client half (``site``) and ``masks`` do the
cryptography. No update may leave a site unmasked, whatever the server asks.

The exchanges of a round in order, and what the server learns from each:

1. *Keys* (``negotiate``). The server sends a nonce; each site replies with two public keys, one for
   encryption and one for masks, and a hash of b_k, by which a wrong share is noticed later. The
   server learns public keys.
2. *Shares* (``negotiate``). The server sends all encryption keys; each site splits its two secrets,
   b_k and its private mask key, and replies with one encrypted box per site. The server relays the
   boxes later and cannot read them.
3. *Training* (``send``, ``encode``). The server sends the mask keys of the sites that go on; each
   site replies with its weighted model plus its own mask plus or minus one mask per other site. The
   server sees a vector that looks uniform.
4. *Unmasking* (``decode``, ``masks_left``). The server says which sites replied and hands each of
   them the boxes made for it; a site returns shares of b_k of those that replied, and of the mask
   key of those that did not. The server removes the own masks of the former and the pairwise masks
   that the latter left behind, and learns the sum.

The own mask b_k is what makes dropping out safe: if a site's update arrives after the server has
asked for its mask key, the update is still hidden by b_k, of which no share is then given.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import (
    Ask,
    ByExamples,
    Channel,
    Client,
    ConfigError,
    ModelSpec,
    PayloadSpec,
    RunError,
    Server,
    Size,
    Tree,
    Update,
    Uploads,
    seeds,
    setting,
    tree,
)
from fedshift.core.aggregate import bounded
from fedshift.core.payload import ANY
from fedshift.privacy import masks, site
from fedshift.privacy.masks import Vector, to_bytes, to_tensor
from fedshift.privacy.recovery import Dealt, recovered

PUBLISHED = ("encryption", "mask", "commitment")  # what a site tells in the first exchange
AGAINST = "a server that follows the protocol (honest but curious)"


@dataclass(frozen=True)
class SecureAggregation(Channel):
    """y_k = w_k theta_k + PRG(b_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj)  modulo 2^64.

    Three exchanges beside training: keys (two public keys each), shares (of b_k and of the mask
    key, encrypted for each site) and, after training, unmasking (shares of b_k of the sites that
    replied, of the mask key of those that did not). Numbers are fixed-point; w_k is in the vector
    too. A site sends 8 bytes per shared number instead of 4, and about 220 bytes per other site.
    """

    threshold: float = setting(
        0.67, "part of the sites without which nothing is unmasked", low=0.5, high=1.0
    )
    bits: int = setting(24, "bits after the point", low=1, high=48)
    randomness: str = setting(
        "seed",
        "seed: keys are derived from it, for simulation only; system: secret keys",
        choices=("seed", "system"),
    )
    gives_privacy = True
    aggregate_only = True
    weights_in_payload = True
    min_clients = 2

    def require(self, server: Server) -> None:
        """Raise before the first round if a site would be alone, or the library is missing."""
        masks.require_library()
        asked = server.scenario.cohort_size(len(server.sites))
        if asked < self.needed(asked):
            raise ConfigError(
                f"{self.name} hides a site's update in a sum of two or more, and {asked} is asked "
                "in a round; ask more of them",
                "scenario.clients_per_round=2",
            )

    def needed(self, sites: int) -> int:
        """How many shares recover a secret; also the least number of sites in a sum."""
        return max(2, math.ceil(self.threshold * sites))

    def uploads(self, model: ModelSpec) -> Uploads:
        """The masked vector; beside training keys, boxes or shares, by :meth:`reject_reason`."""
        entries = (spec for spec in model.shared.values() if spec.dtype.is_floating_point)
        size = 1 + sum(math.prod(spec.shape) for spec in entries)
        box = PayloadSpec((Size("bytes", most=max(site.BOX, site.SHARE, masks.KEY)),), torch.uint8)
        return {"train": {"masked": PayloadSpec((size,), torch.int64)}, "talk": {ANY: box}}

    # client
    def enrol(self, client: Client) -> Tree:
        """Draw the secret that all keys of this site derive from; it never leaves the site."""
        if self.randomness == "system":
            client.state[self.name] = {"secret": to_tensor(os.urandom(masks.KEY))}
        return {}

    def secrets(self, client: Client, nonce: Tensor) -> site.Secrets:
        """The site's secrets of this round, from its stored secret (or the seed) and the nonce."""
        kept = client.state[self.name].get("secret")
        word = repr((client.seed, client.id)).encode() if kept is None else to_bytes(kept)
        return site.Secrets(client.id, masks.derive(word, to_bytes(nonce).hex()))

    def reply(self, client: Client) -> Tree:
        """Reply with keys, shares or unmasking, depending on what the server sent."""
        payload = client.payload(self)
        own = self.secrets(client, payload["nonce"])
        if answered := tree.under("answered", payload):
            return own.unmask(payload, {c for c, yes in answered.items() if bool(yes)}, self.needed)
        keys = tree.under("encryption", payload)
        return own.shares(keys, self.needed(len(keys))) if keys else own.keys()

    def encode(self, client: Client, update: Update) -> Update:
        """Replace the update by the masked vector; any other payload is an error."""
        if loose := sorted(update.payload) + sorted(update.personal):
            raise ConfigError(
                f"client {client.id}: {loose[0]} would leave in the clear; {self.name} covers the "
                "shared entries only: leave out the part that sends it"
            )
        received = client.payload(self)
        peers = tree.under("mask", received)
        weight = int(received["weight"])
        values = torch.cat([v.double().flatten() for v in in_order(update.shared).values()])
        plain = np.append(masks.quantise(values * weight, self.bits, len(peers)), np.uint64(weight))
        hidden = plain + self.secrets(client, received["nonce"]).mask(peers, len(plain))
        payload = {f"{self.name}/masked": torch.from_numpy(hidden.view(np.int64))}
        return dataclasses.replace(update, shared={}, payload=payload, steps=0, metrics={})

    # server
    def negotiate(self, server: Server, cohort: Sequence[str], ask: Ask) -> Sequence[str]:
        """Exchanges 1 and 2; sites that reply to both go on to training."""
        nonce = self.nonce(server)
        server.state[self.name] = {}
        found = ask({c: {"nonce": nonce} for c in cohort})
        keys = tree.merge(
            {f"{kind}/{c}": answer[kind] for kind in PUBLISHED} for c, answer in found.items()
        )
        payload = {"nonce": nonce} | {k: v for k, v in keys.items() if k.startswith("encryption/")}
        server.state[self.name] = payload | keys
        shared = ask(dict.fromkeys(found, payload))
        require_enough(len(shared), self.needed(len(found)), len(cohort))
        encrypted = {
            f"share/{to}/{c}": box for c, boxes in shared.items() for to, box in boxes.items()
        }
        server.state[self.name] |= encrypted
        return sorted(shared)

    def nonce(self, server: Server) -> Tensor:
        """Identifies this attempt at a round, so that no key is used in two of them."""
        if self.randomness == "system":
            return to_tensor(os.urandom(16))
        return to_tensor(seeds.derive(server.seed, server.round, self.name).to_bytes(16, "little"))

    def send(self, server: Server, client: str) -> Tree:
        """The public mask keys of the sites that go on, and the weight of this site's update."""
        state = server.state[self.name]
        going = tree.under(f"share/{client}", state)
        peers = {f"mask/{c}": state[f"mask/{c}"] for c in sorted(going)}
        weight = self.weights(server)[client]
        return {"nonce": state["nonce"], "weight": torch.tensor(weight)} | peers

    def weights(self, server: Server) -> dict[str, int]:
        """Weights of the sites that train, bounded by ``max_weight``, in whole numbers.

        A bounded one is rounded down. If sites drop out, the share of the others grows.
        """
        state = server.state[self.name]
        known = sorted(tree.under("encryption", state))
        going = [c for c in known if tree.under(f"share/{c}", state)]
        sizes = {c: weight_of(server, c) for c in going}
        most, total = server.scenario.max_weight, sum(sizes.values())
        if most is None:
            return sizes
        plain = torch.tensor([sizes[c] / total for c in going], dtype=torch.float64)
        kept = dict(zip(going, bounded(plain, most).tolist(), strict=True))
        server.capped = {c: n / total for c, n in sizes.items() if kept[c] < n / total}
        unit = max((kept[c] / sizes[c] for c in going), default=1.0)  # that of an unbounded site
        return {c: max(1, int(kept[c] / unit)) if c in server.capped else sizes[c] for c in going}

    def reject_reason(self, server: Server, update: Update) -> str:
        """Reject a reply unless it has exactly the expected entries, each of the expected length.

        What is expected depends on how far the round is: keys, boxes or shares.
        """
        told = tree.under(self.name, update.payload)
        if update.task != "talk":
            return ""
        state = server.state[self.name]
        boxes = tree.under(f"share/{update.client}", state)
        if boxes:
            bare = {key.partition("/")[2]: value for key, value in told.items()}
            return wrong(bare, dict.fromkeys(boxes, (site.SHARE, torch.uint8)))
        if keys := tree.under("encryption", state):
            return wrong(told, dict.fromkeys(keys, (site.BOX, torch.uint8)))
        return wrong(told, dict.fromkeys(PUBLISHED, (masks.KEY, torch.uint8))) or next(
            (
                f"its {kind} key is not one of X25519"
                for kind in ("encryption", "mask")
                if not masks.is_public_key(to_bytes(told[kind]))
            ),
            "",
        )

    def decode_all(self, server: Server, updates: Sequence[Update], ask: Ask) -> Sequence[Update]:
        """One update in place of all: the weighted mean, from the sum of the masked vectors."""
        vectors = {u.client: masked_of(u, self.name) for u in updates}
        weights = self.weights(server)
        total = sum_of(vectors) - self.masks_left(server, vectors, ask)
        weight = int(total[-1])
        require_weight(weight, sum(weights[c] for c in vectors), sorted(vectors))
        values = masks.real(total[:-1], self.bits) / weight  # (P,)
        like = in_order(server.shared)
        pieces = values.split([v.numel() for v in like.values()])
        mean = {
            k: piece.view(v.shape).to(v.dtype)
            for (k, v), piece in zip(like.items(), pieces, strict=True)
        }
        examples = sum(u.examples for u in updates)
        shared = server.shared | mean
        return [Update("everybody", "train", server.round, shared=shared, examples=examples)]

    def masks_left(self, server: Server, vectors: Mapping[str, Vector], ask: Ask) -> Vector:
        """Exchange 4: the masks that do not cancel in the sum.

        These are the own masks of the sites that replied, and their pairwise masks with the sites
        that dropped out after exchange 2.
        """
        state = server.state[self.name]
        messages = {c: self._unmask_payload(state, c, vectors) for c in vectors}
        going = set(tree.under("answered", next(iter(messages.values()))))
        needed = self.needed(len(tree.under("encryption", state)))
        require_enough(len(vectors), needed, len(going))
        told = ask(messages)
        require_enough(len(told), needed, len(going))
        size = len(next(iter(vectors.values())))
        left = np.zeros(size, dtype=np.uint64)
        for client in sorted(vectors):
            left += masks.expand(self._secret(state, told, "self", client), size)
        for gone in sorted(going - vectors.keys()):
            key = self._secret(state, told, "pair", gone)
            peers = {c: state[f"mask/{c}"] for c in vectors}
            left -= site.pairwise(key, gone, peers, size)
        counts = {"sites": len(vectors), "dropped": len(going) - len(vectors), "needed": needed}
        server.state[self.name] = {k: torch.tensor(v) for k, v in counts.items()}
        return left

    def _secret(self, state: Tree, told: Mapping[str, Tree], kind: str, owner: str) -> bytes:
        """A site's own mask's seed (``self``) or mask key (``pair``), from the shares of it."""
        known = sorted(tree.under("encryption", state))
        published = to_bytes(state[f"{'commitment' if kind == 'self' else 'mask'}/{owner}"])
        publish = masks.commitment if kind == "self" else masks.public_key
        dealt = Dealt(owner, self.needed(len(known)), lambda found: publish(found) == published)
        name = f"{kind}/{owner}"
        returned = {c: site.read_share(to_bytes(t[name])) for c, t in told.items() if name in t}
        return recovered(dealt, returned, {c: i for i, c in enumerate(known, 1)})

    @staticmethod
    def _unmask_payload(state: Tree, client: str, answered: Mapping[str, Vector]) -> Tree:
        boxes = tree.under(f"share/{client}", state)
        flags = {f"answered/{c}": torch.tensor(c in answered) for c in boxes}
        keys = {k: v for k, v in state.items() if k.startswith("encryption/") or k == "nonce"}
        return keys | tree.prefixed("share", boxes) | flags

    def privacy_spent(self, server: Server, visits: Mapping[str, int]) -> Mapping[str, Any]:
        """How many sites were in the last sum, how many dropped out, and the threshold."""
        told = {k: int(v) for k, v in server.state[self.name].items()}
        return told | {"bits": self.bits, "randomness": self.randomness, "against": AGAINST}


def in_order(entries: Mapping[str, Tensor]) -> Tree:
    """The entries that are summed, sorted by name: floating-point ones, no counters."""
    return {k: v for k, v in sorted(entries.items()) if v.is_floating_point()}


def wrong(found: Tree, due: Mapping[str, tuple[int, torch.dtype]]) -> str:
    """Why ``found`` does not match the names, lengths and dtypes of ``due``; empty if it does."""
    if found.keys() != due.keys():
        return f"it holds {len(found)} secret entries, and {len(due)} others are due"
    for key, (size, dtype) in due.items():
        if found[key].shape != (size,) or found[key].dtype != dtype:
            return f"{key} has shape {tuple(found[key].shape)} of {found[key].dtype}, not ({size},)"
    return ""


def masked_of(update: Update, part: str) -> Vector:
    """The masked vector of one site, as unsigned integers."""
    found: Vector = update.payload[f"{part}/masked"].numpy().view(np.uint64)
    return found


def sum_of(vectors: Mapping[str, Vector]) -> Vector:
    """Sum of the masked vectors modulo 2^64."""
    total = np.zeros_like(next(iter(vectors.values())))
    for vector in vectors.values():
        total += vector
    return total


def weight_of(server: Server, client: str) -> int:
    """The weight of a client's update in the mean: its examples, or 1."""
    by_examples = isinstance(server.method.aggregate.weighting(server), ByExamples)
    return server.roster[client].examples if by_examples else 1


def require_weight(found: int, due: int, clients: Sequence[str]) -> None:
    """Raise if the weights that the sites have put into the sum are not those they were sent."""
    if found != due:
        raise RunError(
            f"the weights in the sum add up to {found}, not to {due}: one of {', '.join(clients)} "
            "sent another weight or model, and secure-aggregation hides which; repeat the round "
            "with fewer of them to find it"
        )


def require_enough(found: int, needed: int, asked: int) -> None:
    """Raise if fewer sites than the threshold are left."""
    if found < needed:
        raise RunError(
            f"{found} of {asked} sites are left, and secure-aggregation needs {needed}; lower its "
            "threshold, or wait for the others with on_loss=wait",
            "on_loss=wait",
        )
