"""FedExP: the server steps further where updates disagree (Jhunjhunwala et al., ICLR 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Aggregator,
    Method,
    Net,
    Part,
    Scoring,
    Server,
    Tree,
    Update,
    call,
    register,
    setting,
    tree,
    weighted_mean,
)


def extrapolation(squares: Tensor, mean_square: float, weights: Tensor, epsilon: float) -> float:
    """eta_g = max(1, sum_k p_k |Delta_k|^2 / (2 (|sum_k p_k Delta_k|^2 + epsilon))).

    ``squares`` (n,) are |Delta_k|^2 and ``weights`` (n,) the p_k; with p_k = 1 / M it is the
    paper's sum_k |Delta_k|^2 / (2 M (|mean|^2 + epsilon)).
    """
    spread = float((weights * squares).sum())
    return max(1.0, spread / (2.0 * (mean_square + epsilon)))


def square_norm(entries: Tree) -> float:
    """Sum of squares over all entries, in double precision."""
    return sum(float(v.double().square().sum()) for v in entries.values())


@dataclass(frozen=True)
class Extrapolation(Aggregator):
    """theta + eta_g sum_k p_k Delta_k, Delta_k = theta_k - theta over the trained parameters.

    Buffers are averaged. Sites send their models and nothing else; the server needs the norm of
    each single update.
    """

    needs_individual_updates = True

    epsilon: float = setting(1e-3, "bounds the step where the mean update vanishes", low=1e-12)

    def combine(self, server: Server, updates: Sequence[Update], weights: Tensor) -> Tree:
        """The server's rate, and the step that it takes."""
        theta = tree.pick(server.shared, server.parameters)
        models = [tree.pick(u.shared, server.parameters) for u in updates]
        mean = weighted_mean(models, weights)
        squares = [square_norm(tree.sub(model, theta)) for model in models]
        eta = extrapolation(
            torch.tensor(squares, dtype=torch.float64),
            square_norm(tree.sub(mean, theta)),
            weights,
            self.epsilon,
        )
        return mean if eta == 1.0 else {k: theta[k].lerp(v, eta) for k, v in mean.items()}


class LastTwo(Part):
    """Scores (theta_t + theta_{t-1}) / 2, the mean of the last two iterates; training uses theta_t.

    The server sends (theta_{t-1} - theta_t) / 2 of the trained parameters with each scoring message
    and adds it to the model that it scores itself. A site's own trained model is scored as it is.
    After round 1 there is one iterate, which is scored alone.
    """

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Remember the iterate before this round, except the initial model."""
        if server.round > 1:
            server.state[self.name] = tree.pick(server.shared, server.parameters)

    def send_scoring(self, server: Server, client: str | None) -> Tree:
        """Half of the way back to the iterate before."""
        before = server.state[self.name]
        return {k: 0.5 * (v - server.shared[k]) for k, v in before.items()}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Outputs of the mean of both, with the net's own buffers."""
        back = scoring.payload(self)
        own = dict(net.named_parameters())
        if not back or is_trained(own, scoring, back):
            return None
        return call(net, {k: own[k] + v for k, v in back.items()}, x).logits


def is_trained(own: Mapping[str, Tensor], scoring: Scoring, keys: Tree) -> bool:
    """Whether a site scores the model it has trained, and not the one that it received."""
    client = scoring.client
    return client is not None and any(not torch.equal(own[k], client.received[k]) for k in keys)


@register("fedexp", paper="Jhunjhunwala et al., ICLR 2023", group="optimisation")
def fedexp() -> Method:
    """FedAvg with a server step that grows where clients disagree.

    The mean of updates that point in different directions is short although every client still has
    far to go. The server lengthens it by a factor that it computes from the updates' norms.

    Use it: when many clients with different data make averaged updates short; nothing to tune.
    Not for: secure aggregation, which hides the norm of a single update.
    Equations: server step size: `extrapolation`; Algorithm 1, server: `Extrapolation.combine`;
    the scored model: `LastTwo`.
    """
    return Method((LastTwo(),), Extrapolation())
