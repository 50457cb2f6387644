"""KD3A's mean: the clients' models, and one more that is distilled from their consensus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Batch,
    Mean,
    Method,
    Server,
    Step,
    Tree,
    Update,
    Weighting,
    register,
    setting,
    shuffled_rows,
    tree,
    weighted_mean,
)
from fedshift.core.net import load
from fedshift.methods.kd3a.consensus import ConsensusFocus
from fedshift.methods.shared.target import train_at_server


def mixture_variance(means: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """Variance (C,) of a mixture with moments (n, C): sum a (v + m^2) - (sum a m)^2.

    BatchNorm MMD: the target's first two moments at their optimum, the weighted sources'.
    """
    second = weights @ (variances + means.square())
    return second - (weights @ means).square()


@dataclass(frozen=True)
class DistilledMean(Mean):
    """sum_k (1 - a_T) a_k w_k + a_T w_T, a_T = N_T / (N_T + sum_k n_k); w_T is trained here.

    w_T starts at the model that was sent and takes as many steps as the busiest client, on target
    inputs, minimising votes / n times KL(consensus | w_T). BatchNorm variances are the mixture's.
    """

    weights: Weighting | None = field(default_factory=ConsensusFocus)
    averaged_variances: bool = setting(False, "plain mean of BatchNorm variances (released code)")
    needs_individual_updates = True

    def covers(self, server: Server) -> frozenset[str]:
        """Parameters, and BatchNorm statistics if they are sent."""
        sent = server.scenario.bn == "average"
        return server.parameters | (server.statistics if sent else frozenset())

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The weighted mean of the clients' models and the target's."""
        told = server.state.pop(ConsensusFocus().name)
        covered = self.covers(server)
        trees = [tree.pick(u.shared, covered) for u in updates]
        trees.append(tree.pick(self._distilled(server, updates, told), covered))
        total = len(server.resources["server_unlabelled"])
        share = total / (total + sum(u.examples for u in updates))
        all_ = torch.cat([(1 - share) * weights, torch.tensor([share], dtype=torch.float64)])
        out = weighted_mean(trees, all_)
        for key in () if self.averaged_variances else server.variances & out.keys():
            mean = key.removesuffix("running_var") + "running_mean"
            means, variances = (torch.stack([t[k].double() for t in trees]) for k in (mean, key))
            out[key] = mixture_variance(means, variances, all_).to(out[key].dtype)
        return out

    @staticmethod
    def _distilled(server: Server, updates: Sequence[Update], told: Tree) -> Tree:
        """Entries of w_T."""
        target, name = server.resources["server_unlabelled"], DistilledMean().name
        rows = shuffled_rows(
            len(told["rows"]),
            server.scenario.batch_size,
            server.generator(name),
            epochs=None,
            steps=max(u.steps for u in updates),
        )
        drawn = [*rows]
        batches = (
            Batch(target.take(told["rows"][some])[0], told["consensus"][some], i)
            for i, some in enumerate(drawn)
        )

        def objective(step: Step) -> dict[str, Tensor]:
            losses = F.cross_entropy(step.out.logits, step.y, reduction="none")  # (B,)
            return {name: (told["votes"][drawn[step.batch.index]] * losses).mean()}

        load(server.net, server.initial, server.shared)
        train_at_server(server, name, batches, objective)
        return tree.clone(server.net.state_dict())


@register("kd3a", paper="Feng et al., ICML 2021", group="alignment")
def kd3a() -> Method:
    """Models vote on a target's labels, distil them, and are weighed by it.

    The clients' confident votes on unlabelled target inputs train one more model at the server.
    Clients whose votes improve the consensus weigh more in the mean, so bad sources weigh less.

    Use it: if the server has target inputs, and some of the sources are irrelevant or wrong.
    Not for: secure aggregation, or a target on which no client's model is confident.
    Equations: `knowledge_vote`; `quality` and `consensus_focus`; BatchNorm MMD: `mixture_variance`.
    """
    return Method((), DistilledMean())
