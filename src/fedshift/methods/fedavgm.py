"""FedAvgM: momentum at the server (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift import Mean, Method, Server, ServerOptimiser, Tree, register, setting


@dataclass(frozen=True)
class Momentum(ServerOptimiser):
    """v <- beta v + Delta; theta <- theta + lr v (Hsu et al., 2019), Delta the mean update."""

    lr: float = setting(1.0, "server learning rate", low=0.0)
    beta: float = setting(0.9, "momentum", low=0.0, high=1.0)

    def __call__(self, server: Server, combined: Tree) -> Tree:
        """Next model; at beta = 0 and lr = 1 exactly the mean, bit for bit."""
        old = server.state[self.name]
        if self.beta == 0.0 and self.lr == 1.0:
            return combined
        delta = {k: v - server.shared[k] for k, v in combined.items()}
        new = {k: d + self.beta * old[k] if old else d for k, d in delta.items()}
        server.state[self.name] = new
        return {k: server.shared[k] + self.lr * v for k, v in new.items()}


@register("fedavgm", paper="Hsu et al., 2019", group="optimisation")
def fedavgm() -> Method:
    """FedAvg with momentum at the server.

    The server treats the mean update as a gradient and adds a decaying sum of the earlier ones to
    it.

    Use it: label skew or few participants make successive means point to different sides.
    Not for: short runs, in which momentum overshoots; beta=0 is FedAvg.
    Equations: Hsu et al., Sec. 3: `Momentum`.
    """
    return Method(aggregate=Mean(optimiser=Momentum()))
