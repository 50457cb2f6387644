"""What the models agree on (knowledge vote), and what each of them adds to it (consensus focus)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Server,
    Update,
    Weighting,
    setting,
)
from fedshift.methods.shared.target import outputs_of

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
