"""FedALA: each client learns how much of the shared model it takes (Zhang et al., AAAI 2023)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
    Method,
    Net,
    Optimisation,
    Output,
    Part,
    Scoring,
    Tree,
    call,
    register,
    setting,
    tree,
)
from fedshift.core.net import load
from fedshift.data.samples import split_rows
from fedshift.methods.shared.branch import trained_keys
from fedshift.methods.shared.layers import layers
from fedshift.methods.shared.tuning import aside, take_steps, task_turn

WINDOW, SETTLED = 10, 0.1  # the weights have settled when the last losses differ by less than that
MOST_PASSES = 100  # if they never do


def aggregated(own: Tree, shared: Tree, weights: Mapping[str, Tensor]) -> Tree:
    """Own + (shared - own) * weights, entry by entry; exactly ``shared`` where a weight is 1."""
    return {k: torch.lerp(own[k], shared[k], weights[k]) for k in weights}


def settled(losses: Sequence[float]) -> bool:
    """Whether the standard deviation of the last losses is small."""
    return len(losses) > WINDOW and statistics.pstdev(losses[-WINDOW:]) < SETTLED


@dataclass(frozen=True)
class LocalAggregation(Part):
    """Training starts from own + (theta - own) * W in the top layers, from theta in the others.

    ``own`` are the client's values after its last visit, and W, one weight in [0, 1] per parameter,
    takes projected steps of rate ``eta`` on the task loss at that mixture, with everything else
    held fixed: until the loss settles when it is first learnt, one pass later. W and ``own`` stay
    in the client's state, and the mixture with the newest theta is scored. W starts at 1.
    """

    layers: int = setting(1, "layers from the head down that are mixed; 0 is all", low=0)
    eta: float = setting(1.0, "rate of the weights", low=0.0)
    sample: float = setting(0.8, "share of the samples that a pass looks at", low=0.0, high=1.0)

    def keys(self, net: Net) -> list[str]:
        """The parameters of the top layers."""
        trained = trained_keys(net)
        found = [[k for k in keys if k in trained] for keys in layers(net).values()]
        return [k for keys in [keys for keys in found if keys][-self.layers :] for k in keys]

    def begin(self, client: Client) -> None:
        """Learn W and load the mixture into the net; the first visit starts from theta."""
        own, weights = self._kept(client)
        if not own:
            return
        weights = self.learnt(client, own, weights)
        load(client.net, aggregated(own, client.received, weights))
        client.state[self.name] = tree.prefixed("weight", weights)

    def _kept(self, client: Client) -> tuple[Tree, Tree]:
        kept = client.state[self.name]
        return tree.under("own", kept), tree.under("weight", kept)

    def learnt(self, client: Client, own: Tree, weights: Tree) -> Tree:
        """W after one pass, or, if there is none yet, after as many as the loss needs to settle."""
        net, passes = client.net, 1 if weights else MOST_PASSES
        with aside(net):
            start = weights or {k: torch.ones_like(v) for k, v in own.items()}
            w = {k: nn.Parameter(v.clone()) for k, v in start.items()}
            theta = tree.clone(net.state_dict())

            def forward(batch: Batch) -> Output:
                for weight in w.values():
                    weight.data.clamp_(0, 1)  # after each step
                return call(net, theta | aggregated(own, theta, w), batch.x)

            turn = task_turn(client, self.name, w.items(), forward, Optimisation(lr=self.eta))
            chosen, losses = self._chosen(client), list[float]()
            while len(losses) < passes and not settled(losses):
                batches = (Batch(*client.site.data.train.take(rows)) for rows in chosen)
                losses.append(take_steps(client, turn, batches))
        return {k: v.detach().clamp(0, 1) for k, v in w.items()}

    def _chosen(self, client: Client) -> list[Tensor]:
        """Batches of rows, at least two samples; the same in every pass of a visit."""
        rows = torch.randperm(client.examples, generator=client.generator(self.name))
        n = max(2, int(self.sample * client.examples))
        return split_rows(rows[:n], client.scenario.batch_size)

    def finish(self, client: Client) -> Tree:
        """Keep the trained values of the mixed parameters; nothing of them is sent."""
        own = tree.pick(client.net.state_dict(), self.keys(client.net))
        client.state[self.name] |= tree.prefixed("own", tree.clone(own))
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """The mixture of the client's own and the net's present values."""
        own, weights = self._kept(scoring.client) if scoring.client else ({}, {})
        if not weights:
            return None
        return call(net, aggregated(own, net.state_dict(), weights), x).logits


@register("fedala", paper="Zhang et al., AAAI 2023", group="personal")
def fedala() -> Method:
    """FedAvg that starts each visit from a learnt mixture of old and new.

    A site does not simply replace its model by the shared one: for each parameter of the head it
    learns on its own samples how much of the change it takes. The lower layers take all of it.

    Use it: the shared head is not the best one for every site, and all layers still travel.
    Not for: sites with few samples, on which one weight per parameter overfits.
    Equations: the local aggregation: `aggregated`; its weights: `LocalAggregation.learnt`.
    """
    return Method((LocalAggregation(),))
