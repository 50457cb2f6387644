"""pFedMe: personal models by Moreau envelopes (Dinh et al., NeurIPS 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import Parameter

from fedshift import (
    Add,
    Batch,
    Client,
    ConfigError,
    Mean,
    Method,
    ModelSpec,
    Named,
    Net,
    Optimisation,
    Output,
    Part,
    Phase,
    Player,
    Scoring,
    Step,
    Tree,
    Uniform,
    call,
    register,
    setting,
    tree,
)


def squared_gap(theta: Mapping[str, Tensor], w: Mapping[str, Tensor]) -> Tensor:
    """|theta - w|^2 over the entries of ``w``."""
    return torch.stack([(theta[k] - v).square().sum() for k, v in w.items()]).sum()


def plain(chosen: Optimisation) -> Optimisation:
    """The scenario's rate without weight decay and clipping: the step is w - lr lam (w - theta)."""
    return replace(chosen, weight_decay=0.0, clip=None)


def nothing(client: Client, batch: Batch) -> Output:  # noqa: ARG001  a player's forward pass
    """No forward pass: the step of w looks at theta alone."""
    return Output(torch.empty(0), torch.empty(0), {}, {})


@dataclass(frozen=True)
class MoreauEnvelope(Part):
    """theta ~ argmin f(theta) + lam/2 |theta - w|^2 by K steps; then w <- w - lr lam (w - theta).

    Both steps are taken on each batch, at the scenario's rate, and start at the received model. The
    net trains theta, so other parts act on it; w covers the shared parameters, and is what is sent.
    theta stays in the client's state and is scored as its own model. BatchNorm statistics are those
    of theta's first pass of each batch.
    """

    optimisers = frozenset({"sgd"})

    lam: float = setting(15.0, "pull of the personal model to w", low=0.0)
    inner_steps: int = setting(5, "K, steps of theta on each batch", low=1)

    def check(self, model: ModelSpec) -> None:
        """From lr lam = 2 on, both steps overshoot by more than the gap that they close."""
        rate = model.scenario.lr * self.lam
        if rate >= 2:
            raise ConfigError(
                f"{self.name} steps with lr * lam, {rate:g} here, which diverges from 2 on; "
                f"set lam below {2 / model.scenario.lr:g}, or lower scenario.lr"
            )

    def begin(self, client: Client) -> None:
        """Both start at the received model."""
        client.scratch[self.name] = {k: Parameter(x.clone()) for k, _, x in client.anchors()}

    def phases(self, client: Client) -> Sequence[Phase]:
        """K steps of theta, then one of w, on each batch."""
        outer = Player(self.name, self.shared_model, nothing, self.envelope, plain)
        own = (outer,) if client.scratch[self.name] else ()
        return (Phase((*(Player(),) * self.inner_steps, *own)),)

    def shared_model(self, client: Client) -> Named:
        """Parameters of w."""
        return client.scratch[self.name].items()

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The pull of theta to w."""
        w = {k: v.detach() for k, v in client.scratch[self.name].items()}
        theta = dict(client.net.named_parameters())
        return 0.5 * self.lam * squared_gap(theta, w) if w else None

    def envelope(self, client: Client, step: Step) -> dict[str, Tensor]:
        """The envelope's gradient in w is lam (w - theta)."""
        theta = {k: p.detach() for k, p in client.net.named_parameters()}
        return {f"{self.name}/w": 0.5 * self.lam * squared_gap(theta, client.scratch[self.name])}

    def finish(self, client: Client) -> Tree:
        """Keep theta, and send w."""
        entries = client.net.state_dict()
        client.state[self.name] = tree.clone(entries)
        for key, value in client.scratch[self.name].items():
            entries[key].copy_(value.detach())
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Score theta where there is one, w elsewhere."""
        theta = scoring.client.state[self.name] if scoring.client else {}
        return call(net, theta, x).logits if theta else None


@register("pfedme", paper="Dinh et al., NeurIPS 2020", group="personal")
def pfedme() -> Method:
    """Personal models near a shared one that is their common centre.

    On each batch a client solves for a personal model near the shared one, then moves the shared
    one towards it. The shared model follows the gradient of the smoothed losses, not of the losses.

    Use it: each site wants a model of its own and can pay several steps on each batch.
    Not for: one model for all, or a learning rate above 2 / lam.
    Equations: Algorithm 1, line 7: `MoreauEnvelope.loss`; line 8: `MoreauEnvelope.envelope`;
    line 11, beta: the server's rate.
    """
    return Method((MoreauEnvelope(),), Mean(Uniform(), Add()))
