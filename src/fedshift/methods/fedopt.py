"""FedAdagrad, FedAdam, FedYogi: adaptive optimisers at the server (Reddi et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedshift import Mean, Method, Server, ServerOptimiser, Tree, register, setting


@dataclass(frozen=True)
class Adaptive(ServerOptimiser):
    """m <- b1 m + (1 - b1) Delta; theta <- theta + lr m / (sqrt(v) + tau), Algorithm 2.

    Subclasses define the second moment v. It starts at tau^2, as in the paper, and there is no bias
    correction.
    """

    lr: float = setting(0.01, "server learning rate", low=0.0)
    b1: float = setting(0.9, "decay of the first moment", low=0.0, high=1.0)
    b2: float = setting(0.99, "decay of the second moment", low=0.0, high=1.0)
    tau: float = setting(1e-3, "degree of adaptivity", low=0.0)

    def second_moment(self, v: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Next v from the last one and Delta."""
        raise NotImplementedError

    def __call__(self, server: Server, combined: Tree) -> Tree:
        """Lines 10 to 15."""
        old = server.state[self.name]
        state: Tree = {}
        out: Tree = {}
        for k, mean in combined.items():
            theta = server.shared[k]
            delta = mean - theta
            m = self.b1 * old.get(f"m/{k}", torch.zeros_like(theta)) + (1 - self.b1) * delta
            v = self.second_moment(old.get(f"v/{k}", torch.full_like(theta, self.tau**2)), delta)
            out[k] = theta + self.lr * m / (v.sqrt() + self.tau)
            state |= {f"m/{k}": m, f"v/{k}": v}
        server.state[self.name] = state
        return out


class Adagrad(Adaptive):
    """v <- v + Delta^2."""

    def second_moment(self, v: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Sum of squares."""
        return v + delta.square()


class Adam(Adaptive):
    """v <- b2 v + (1 - b2) Delta^2."""

    def second_moment(self, v: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Moving average of squares."""
        return self.b2 * v + (1 - self.b2) * delta.square()


class Yogi(Adaptive):
    """v <- v - (1 - b2) Delta^2 sign(v - Delta^2)."""

    def second_moment(self, v: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """An additive change, so that v decreases slowly."""
        square = delta.square()
        return v - (1 - self.b2) * square * (v - square).sign()


@register("fedadagrad", paper="Reddi et al., ICLR 2021", group="optimisation")
def fedadagrad() -> Method:
    """FedAvg with Adagrad at the server.

    The server divides each coordinate of the mean update by the root of the sum of its squares so
    far.

    Use it: updates are sparse: text, embeddings, rare classes.
    Not for: long runs, since its steps only shrink, and short ones without tuning lr.
    Equations: Algorithm 2: `Adaptive`; second moment: `Adagrad.second_moment`.
    """
    return Method(aggregate=Mean(optimiser=Adagrad()))


@register("fedadam", paper="Reddi et al., ICLR 2021", group="optimisation")
def fedadam() -> Method:
    """FedAvg with Adam at the server.

    The server divides a moving average of the mean updates by the root of a moving average of their
    squares, coordinate by coordinate.

    Use it: gradients of layers differ much in scale, as in transformers, and lr can be tuned.
    Not for: a comparison at default rates: the server's lr has to be tuned with the clients'.
    Equations: Algorithm 2: `Adaptive`; second moment: `Adam.second_moment`.
    """
    return Method(aggregate=Mean(optimiser=Adam()))


@register("fedyogi", paper="Reddi et al., ICLR 2021", group="optimisation")
def fedyogi() -> Method:
    """FedAvg with Yogi at the server.

    As FedAdam, but the second moment changes by an additive step, so that it shrinks slowly after a
    large update.

    Use it: FedAdam is unstable because updates are occasionally large.
    Not for: a comparison at default rates: the server's lr has to be tuned with the clients'.
    Equations: Algorithm 2: `Adaptive`; second moment: `Yogi.second_moment`.
    """
    return Method(aggregate=Mean(optimiser=Yogi()))
