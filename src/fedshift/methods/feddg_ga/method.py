"""Weights of the mean that follow the generalisation gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Mean,
    Method,
    Server,
    Tree,
    Update,
    Weighting,
    register,
    setting,
)
from fedshift.methods.feddg_ga.probe import GapProbe


def adjusted(a: Tensor, gaps: Tensor, step: float, *, centred: bool = True) -> Tensor:
    """a_k + step (G_k - mean G) / max_j |G_j - mean G|, not below 0, scaled to sum 1; all (n,)."""
    apart = gaps - gaps.mean() if centred else gaps
    most = apart.abs().max()
    raised = a + step * apart / most if bool(most > 0) else a
    raised = raised.clamp(min=0.0)
    return raised / raised.sum()


@dataclass(frozen=True)
class GapWeights(Weighting):
    """a_k grows with G_k, the received model's validation loss minus the client's own last one.

    G_k = loss of the aggregated model - loss of the client's model just before, both on the
    client's validation samples; the first is measured when the model arrives, one round later, so
    weights of a round use the gaps of the one before. The step is (1 - t / T) step. Only clients
    of which both are known move; over the participants weights are scaled to sum 1.
    """

    step: float = setting(0.2, "first step of the weights; falls linearly to 0", low=0.0, high=1.0)
    metric: str = setting("loss", "what the gap is measured in", choices=("loss", "score"))
    uncentred: bool = setting(False, "released: gaps as they are, without subtracting their mean")
    step_per_client: bool = setting(False, "released: the step is divided by the number of clients")
    needs_parts = frozenset({"gap-probe"})

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,)."""
        kept = server.state[self.name]
        n = len(server.roster)
        start = torch.full((), 1.0 / n, dtype=torch.float64)
        all_ = {c: kept.get(f"weight/{c}", start) for c in sorted(server.roster)}
        moving = [u for u in updates if f"trained/{u.client}" in kept]
        if moving:
            a = torch.stack([all_[u.client] for u in moving])
            new = self._moved(server, a, torch.stack([self._gap(kept, u) for u in moving]))
            all_ |= {u.client: w for u, w in zip(moving, new, strict=True)}
        told = {f"trained/{u.client}": self._of(u, "trained") for u in updates}
        server.state[self.name] = kept | {f"weight/{c}": w for c, w in all_.items()} | told
        used = torch.stack([all_[u.client] for u in updates])
        return used / used.sum() if bool(used.sum() > 0) else torch.full_like(used, 1 / len(used))

    def _moved(self, server: Server, a: Tensor, gaps: Tensor) -> Tensor:
        """The next weights of some clients (m,), which keep their common share of all weights."""
        left = 1.0 - (server.round - 1) / server.scenario.rounds
        step = self.step * max(0.0, left) / (len(server.roster) if self.step_per_client else 1)
        share = a.sum()
        even = a / share if bool(share > 0) else torch.full_like(a, 1.0 / len(a))
        return share * adjusted(even, gaps, step, centred=not self.uncentred)

    def _gap(self, kept: Tree, update: Update) -> Tensor:
        """How much worse the aggregated model is than the client's own was."""
        worse = self._of(update, "received") - kept[f"trained/{update.client}"]
        return worse if self.metric == "loss" else -worse

    def _of(self, update: Update, model: str) -> Tensor:
        return update.payload[f"gap-probe/{model}/{self.metric}"]


@register("feddg-ga", paper="Zhang et al., CVPR 2023", group="aggregation")
def feddg_ga() -> Method:
    """FedAvg whose weights even out how much averaging costs each client.

    Averaging makes a client's model worse on its own validation data. Clients that lose more than
    the others get a larger weight in the next rounds, so that the losses become alike and the model
    is not tied to a few domains.

    Use it: for one model that is to hold on unseen domains, with a validation split at each client.
    Not for: clients without validation samples, or with so few that gaps are noise.
    Equations: the gap: `GapProbe`, `GapWeights`; the step of the weights: `adjusted`.
    """
    return Method((GapProbe(),), Mean(GapWeights()))
