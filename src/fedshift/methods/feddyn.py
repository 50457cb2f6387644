"""FedDyn: dynamic regularisation by local duals (Acar et al., ICLR 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fedshift import (
    Client,
    Mean,
    Method,
    Part,
    Server,
    ServerOptimiser,
    Step,
    Tree,
    Uniform,
    register,
    setting,
    tree,
)


@dataclass(frozen=True)
class DynamicDual(Part):
    """-<l_k, w> + alpha/2 |w - theta|^2, then l_k <- l_k - alpha (theta_k - theta).

    l_k stays in the client's state and starts at zero. Gradients are clipped because
    the duals accumulate every outlier; released implementations clip them too.
    """

    alpha: float = setting(0.1, "weight of dual and pull", low=0.0)
    clip: float | None = setting(10.0, "gradient norm, None for no limit", low=0.0)
    optimisers = frozenset({"sgd"})

    def begin(self, client: Client) -> None:
        """l_k = 0 before the first visit."""
        if not client.state[self.name]:
            client.state[self.name] = {k: torch.zeros_like(x) for k, _, x in client.anchors()}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The two terms of the local objective."""
        dual = client.state[self.name]
        terms = [
            0.5 * self.alpha * (w - theta).square().sum() - (dual[k] * w).sum()
            for k, w, theta in client.anchors()
        ]
        return torch.stack(terms).sum() if terms else None

    def edit_gradients(self, client: Client, step: Step) -> None:
        """Limit the gradient's norm."""
        if self.clip is not None:
            clip_grad_norm_(client.net.parameters(), self.clip)

    def finish(self, client: Client) -> Tree:
        """Update the dual; nothing but the model is sent."""
        dual = client.state[self.name]
        client.state[self.name] = {
            k: dual[k] - self.alpha * (w.detach() - theta) for k, w, theta in client.anchors()
        }
        return {}


@dataclass(frozen=True)
class Dual(ServerOptimiser):
    """h <- h - alpha/N sum_S (theta_k - theta); theta <- mean_S theta_k - h / alpha.

    The state is s = -h / alpha, the accumulated drift, so that alpha cancels:
    s <- s + |S|/N (mean - theta); theta <- mean + s. This is equivalent for the uniform mean.
    """

    def __call__(self, server: Server, combined: Tree) -> Tree:
        """``combined`` is the mean over the participants."""
        share = server.participants / len(server.roster)
        old = server.state[self.name] or tree.zeros_like(combined)
        drift = {k: old[k] + share * (mean - server.shared[k]) for k, mean in combined.items()}
        server.state[self.name] = drift
        return tree.add(combined, drift)


@register("feddyn", paper="Acar et al., ICLR 2021", group="optimisation")
def feddyn() -> Method:
    """Local duals and a server dual align local and global optima.

    A linear term, updated after each visit, cancels the pull of a client's own optimum, and a
    quadratic one keeps it near the received model. The server adds the accumulated drift to the
    mean.

    Use it: many rounds of long local training with plain SGD, on sites whose optima differ.
    Not for: momentum, Adam or few rounds: the duals accumulate every outlier, and it diverges more
    easily than FedProx.
    Equations: Algorithm 1, local objective: `DynamicDual.loss`; its dual: `DynamicDual.finish`;
    server: `Dual`.
    """
    return Method((DynamicDual(),), Mean(Uniform(), Dual()))
