"""KD3A: the clients' knowledge distilled on an unlabelled target (Feng et al., ICML 2021).

After each round the participants' models vote on target inputs at the server (knowledge vote), the
server trains one more model on the result, and all models are averaged, those whose votes improve
the consensus with more weight (consensus focus). Only models travel.
"""

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
from fedshift.methods.shared.target import outputs_of, train_at_server

UNSURE = 1e-3  # weight of an input on which no model passes the gate


def knowledge_vote(p: Tensor, gate: float) -> tuple[Tensor, Tensor]:
    """Consensus (N, K) and its weight (N,), from the probabilities (n, N, K) of n models.

    Models at least as sure as ``gate`` vote for their class; the consensus is the mean over those
    that voted for the class with most votes (ties: the larger sum of probabilities), its weight
    their number. If nobody is sure it is the mean of all, and the weight is 0.001.
    """
    top, named = p.max(2)  # (n, N) each
    sure = (top >= gate).to(p.dtype)  # (n, N)
    ballots = F.one_hot(named, p.shape[2]) * sure[..., None]  # (n, N, K)
    tied = (ballots * top[..., None]).sum(0) / (len(p) + 1)  # (N, K), below one vote
    winner = (ballots.sum(0) + tied).argmax(1)  # (N,)
    support = sure * (named == winner)  # (n, N)
    votes = support.sum(0)  # (N,)
    mean = (support[..., None] * p).sum(0) / votes.clamp_min(1)[:, None]
    heard = votes > 0
    return torch.where(heard[:, None], mean, p.mean(0)), torch.where(heard, votes, UNSURE)


def quality(p: Tensor, gate: float) -> Tensor:
    """Q = sum over inputs of votes times the consensus's largest probability.

    An input on which nobody is sure counts nothing, as released; 0 without models.
    """
    if not len(p):
        return p.new_zeros(())
    consensus, votes = knowledge_vote(p, gate)
    return (votes.floor() * consensus.amax(1)).sum()


def consensus_focus(p: Tensor, gate: float) -> Tensor:
    """CF_k = Q(all) - Q(all but k), (n,), at least 0: what each model adds to the consensus."""
    all_ = quality(p, gate)
    others = [torch.cat([p[:k], p[k + 1 :]]) for k in range(len(p))]
    return torch.stack([all_ - quality(rest, gate) for rest in others]).clamp_min(0)


def mixture_variance(means: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """Variance (C,) of a mixture with moments (n, C): sum a (v + m^2) - (sum a m)^2.

    BatchNorm MMD: the target's first two moments at their optimum, the weighted sources'.
    """
    second = weights @ (variances + means.square())
    return second - (weights @ means).square()


@dataclass(frozen=True)
class ConsensusFocus(Weighting):
    """a_k = n_k CF_k / sum_j n_j CF_j; by examples if no model adds anything.

    The gate rises linearly over the run. Models normalise by the target's batches, as released.
    """

    objectives = frozenset({"classification"})

    gate_begin: float = setting(0.8, "confidence gate in the first round", low=0.0, high=1.0)
    gate_end: float = setting(0.95, "confidence gate in the last round", low=0.0, high=1.0)
    focus_samples: int = setting(2048, "target inputs voted on per round", low=2)
    needs = frozenset({"server_unlabelled"})
    needs_individual_updates = True

    def gate(self, server: Server) -> float:
        """The gate of this round."""
        share = (server.round - 1) / max(1, server.scenario.rounds - 1)
        return self.gate_begin + share * (self.gate_end - self.gate_begin)

    def __call__(self, server: Server, updates: Sequence[Update]) -> Tensor:
        """Weights (n,); what was voted stays in the server's state until the target is trained."""
        size = len(server.resources["server_unlabelled"])
        rows = torch.randperm(size, generator=server.generator(self.name))[: self.focus_samples]
        p = torch.stack(
            [outputs_of(server, u, rows, by_target=True).logits.softmax(1) for u in updates]
        ).double()  # (n, N, K)
        gate = self.gate(server)
        consensus, votes = knowledge_vote(p, gate)
        server.state[self.name] = {
            "rows": rows,
            "consensus": consensus.float(),
            "votes": (votes / len(p)).float(),
        }
        n = torch.tensor([u.examples for u in updates], dtype=torch.float64)
        gains = n * consensus_focus(p, gate)
        return gains / gains.sum() if bool(gains.sum() > 0) else n / n.sum()


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
