"""FedProto: class means travel, weights do not (Tan et al., AAAI 2022, Eqs. 3 and 6 to 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import fedshift as fs


@dataclass(frozen=True)
class ExamplePrototypes(fs.Part):
    """lam |z - P_y|^2 / D; P_c is the mean of class c over all clients, and the nearest P wins."""

    lam: float = fs.setting(1.0, "weight of the distance to the prototype", low=0.0)
    shares = "sums of features and numbers of samples by class"
    objectives = frozenset({"classification"})
    scored_at_sites = True  # there is no model of the server

    def scope(self, net: fs.Net) -> Mapping[str, fs.Scope]:
        return dict.fromkeys(net.state_dict(), fs.Scope.PRIVATE)

    def uploads(self, model: fs.ModelSpec) -> fs.Uploads:
        sums = fs.PayloadSpec((model.classes, model.features))
        return {"train": {"sums": sums, "counts": fs.PayloadSpec((model.classes,), low=0)}}

    def loss(self, client: fs.Client, step: fs.Step) -> torch.Tensor | None:
        if not (told := client.payload(self)):
            return None
        gaps = (step.out.features - told["means"][step.y]).square().mean(1)  # (B,)
        return self.lam * (gaps * (told["counts"][step.y] > 0)).mean()

    def finish(self, client: fs.Client) -> fs.Tree:
        net, rows, one_hot = client.net, client.site.data.train.chunks(), torch.eye(client.classes)
        found = [(fs.call_frozen(net, net.state_dict(), x).features, one_hot[y]) for x, y in rows]
        z, held = map(torch.cat, zip(*found, strict=True))  # (n, D), (n, K)
        return {"sums": held.T @ z, "counts": held.sum(0)}

    def merge(self, server: fs.Server, updates: Sequence[fs.Update]) -> None:
        told = [fs.tree.under(self.name, u.payload) for u in updates]
        sums, counts = (sum(t[key] for t in told) for key in ("sums", "counts"))  # (K, D), (K,)
        server.state[self.name] = {"means": sums / counts.clamp(min=1)[:, None], "counts": counts}

    def send(self, server: fs.Server, client: str | None) -> fs.Tree:
        return server.state[self.name]

    send_scoring = send

    def predict(self, net: fs.Net, x: torch.Tensor, scoring: fs.Scoring) -> torch.Tensor | None:
        told = scoring.payload(self)
        return -torch.cdist(net(x).features, told["means"]).masked_fill(told["counts"] == 0, 1e9)


@fs.register("example-fedproto", paper="Tan et al., AAAI 2022")
def fedproto() -> fs.Method:
    """Private nets that agree on the mean feature of each class."""
    return fs.Method((ExamplePrototypes(),))
