"""Pseudo-data of FedDebias: means of random samples, alone or mixed with local ones.

D_p is one batch of inputs that belong to no class in particular: each is the mean of M random
inputs, so its label is uniform, 1/C. The same D_p goes to all clients. A local classifier that
prefers some classes on D_p, or local features of it that move away from the received model's, show
the bias of that client's data; the two parts in ``method`` add a loss against each. The part here
adds no loss, it only makes D_p, in this order: the client sends means (``enrol``, ``finish``), the
server draws B of them (``admit``, ``merge``) and sends these (``send``), the client keeps them for
the visit (``begin``) and, for ``mixture``, mixes local samples in before each batch (``batch``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift import (
    Batch,
    Client,
    ConfigError,
    ModelSpec,
    Net,
    Part,
    PayloadSpec,
    Server,
    Tree,
    Update,
    Uploads,
    setting,
)
from fedshift.methods.feddebias.means import choose, draw, means_of, mixture


@dataclass(frozen=True)
class PseudoData(Part):
    """One batch D_p of B pseudo-samples, the same for all clients; adds no loss of its own.

    ``rsm`` (Algorithm 2): each client uploads ``per_client`` means of M of its training inputs,
    and the server draws B of all clients' latest means; labels are 1/C. ``mixture`` (Algorithm 3
    and Eq. 4): the server makes the means from a public set, and each client mixes them with random
    local samples, drawn again for each batch. The server sends D_p, B inputs, every round or once.
    """

    kind: str = setting("rsm", "where it comes from", choices=("rsm", "mixture"))
    per_sample: int = setting(10, "M: inputs in one mean", low=1)
    per_client: int = setting(8, "K of Algorithm 2: means that a client uploads", low=1)
    local_samples: int = setting(1, "K of Eq. 4: local samples in one mixture", low=0)
    refresh: str = setting("round", "made anew every round, or once", choices=("round", "once"))
    size: int = setting(0, "B: pseudo-samples in D_p; 0 takes the batch size", low=0)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """A public set for ``mixture``, nothing for ``rsm``."""
        return frozenset({"public_set"} if self.kind == "mixture" else ())

    @property
    def shares(self) -> str:  # type: ignore[override]
        """Means of the client's inputs under ``rsm``; nothing under ``mixture``."""
        when = "per round" if self.refresh == "round" else "once"
        means = f"{self.per_client} means of {self.per_sample} training inputs, {when}"
        return means if self.kind == "rsm" else ""

    def build(self, net: Net) -> None:
        """Add nothing; raise if BatchNorm would have to normalise a single sample."""
        if self.size == 1 and any(isinstance(m, _BatchNorm) for m in net.modules()):
            raise ConfigError(
                f"{self.name}.size is 1 and the backbone has BatchNorm, which needs 2; raise it, "
                "or use a backbone with norm=group"
            )

    def uploads(self, model: ModelSpec) -> Uploads:
        """Means of inputs (n, *shape), when a client enrols and, unless D_p is kept, each round."""
        means = {"means": PayloadSpec((self.per_client, *model.net.shape))}
        if self.kind != "rsm":
            return {}
        return {"enrol": means} if self.refresh == "once" else {"enrol": means, "train": means}

    # where D_p comes from
    def enrol(self, client: Client) -> Tree:
        """Algorithm 2, lines 3 to 6: the client's means for the first D_p."""
        return self._means(client) if self.kind == "rsm" else {}

    def finish(self, client: Client) -> Tree:
        """Send new means for the next D_p; keep D_p at the client if it is sent only once."""
        once = self.refresh == "once"
        if once:
            client.state[self.name] = {"batch": client.scratch[self.name]["batch"]}
        return self._means(client) if self.kind == "rsm" and not once else {}

    def _means(self, client: Client) -> Tree:
        generator = client.generator(self.name)
        train = client.site.data.train
        return {"means": means_of(train, self.per_client, self.per_sample, generator)}

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Make the first D_p."""
        self._compose(server, enrolments)

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Make the next D_p, or record which clients have received the only one."""
        if self.refresh == "round":
            self._compose(server, updates)
        else:
            server.state[self.name] |= {f"held/{u.client}": torch.ones(()) for u in updates}

    def _compose(self, server: Server, updates: Sequence[Update]) -> None:
        """D_p from the public set, or from every client's latest means."""
        size = self.size or server.scenario.batch_size
        generator = server.generator(self.name)
        if self.kind == "mixture":
            public = server.resources["public_set"]
            server.state[self.name] = {"batch": means_of(public, size, self.per_sample, generator)}
            return
        state = server.state[self.name]
        told = {f"means/{u.client}": u.payload[f"{self.name}/means"] for u in updates}
        held = {k: v for k, v in state.items() if k.startswith("means/")} | told
        every = torch.cat([held[k] for k in sorted(held)])  # (n K, *shape)
        kept = held if self.refresh == "round" else {}
        server.state[self.name] = kept | {"batch": choose(every, size, generator)}

    def send(self, server: Server, client: str) -> Tree:
        """D_p, unless it is sent once and the client has it already."""
        state = server.state[self.name]
        return {} if f"held/{client}" in state else {"batch": state["batch"]}

    # what the client sees of it
    def begin(self, client: Client) -> None:
        """D_p of this visit: ``batch`` as received, ``x`` as the losses see it."""
        batch = client.payload(self).get("batch", client.state[self.name].get("batch"))
        assert batch is not None  # it is sent at a client's first visit
        client.scratch[self.name] = {"batch": batch, "x": batch}

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Eq. 4: mix D_p with local samples; the training batch itself is unchanged."""
        if self.kind == "mixture" and self.local_samples:
            held = client.scratch[self.name]
            n, k = len(held["batch"]), self.local_samples
            x, y = draw(client.site.data.train, n * k, client.generator(self.name))
            x_k = x.unflatten(0, (n, k))  # (B, K, *shape)
            y_k = F.one_hot(y, client.classes).float().unflatten(0, (n, k))  # (B, K, C)
            held["x"], held["y"] = mixture(held["batch"], x_k, y_k)
        return batch
