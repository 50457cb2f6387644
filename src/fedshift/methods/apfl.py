"""APFL: each client mixes the shared model with its own (Deng et al., 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
    Method,
    Named,
    Net,
    Output,
    Part,
    Phase,
    Player,
    Scoring,
    Step,
    Tree,
    call,
    register,
    setting,
    tree,
)
from fedshift.methods.shared.branch import closed, leaves, opened


def mixture(own: Tree, shared: Tree, a: Tensor) -> Tree:
    """Entries a v + (1 - a) w where both models have one; the others are the own model's.

    The gradient with respect to v is a times that of the mixture, and with respect to a it is
    <v - w, gradient of the mixture>.
    """
    return {k: a * v + (1 - a) * shared[k] if k in shared else v for k, v in own.items()}


@dataclass(frozen=True)
class Mixture(Part):
    """A client's model is a v + (1 - a) w: w is shared; v, a and BatchNorm statistics are its own.

    On each batch v <- v - lr a g and a <- a - lr <v - w, g>, clipped to [0, 1], where g is the
    gradient of F_k at the mixture, and w takes its own step, all from the values before the batch.
    v and a stay in the client's state, nothing is sent beside w. With ``learn=false`` a is fixed.
    """

    alpha: float = setting(0.5, "a at the start: 0 is the shared model", low=0.0, high=1.0)
    learn: bool = setting(True, "train a as well")

    def begin(self, client: Client) -> None:
        """V starts at the first received w, a at ``alpha``."""
        kept = client.state[self.name]
        own = tree.under("v", kept) or client.received
        start = next(client.net.parameters()).new_tensor(self.alpha)
        a = kept.get("a", start).clone()
        branch = tree.prefixed("v", opened(client, own))
        client.state[self.name] = branch | {"a": nn.Parameter(a) if self.learn else a}

    def phases(self, client: Client) -> Sequence[Phase]:
        """The own model moves first: its step needs w as it was before the batch."""
        own = Player(self.name, self.trained, self.forward, self.objective)
        return (Phase((own, Player())),)

    def trained(self, client: Client) -> Named:
        """V and, unless it is fixed, a."""
        return leaves(client.state[self.name])

    def forward(self, client: Client, batch: Batch) -> Output:
        """The net with the mixture in place of its own entries; a is clipped after each step."""
        client.state[self.name]["a"].data.clamp_(0, 1)
        return self.mixed(client.net, client.state[self.name], batch.x)

    def mixed(self, net: Net, kept: Tree, x: Tensor) -> Output:
        """Output of the mixture of v and the net's present w, which gets no gradient."""
        shared = {k: w.detach() for k, w in net.named_parameters()}
        return call(net, mixture(tree.under("v", kept), shared, kept["a"]), x)

    def objective(self, client: Client, step: Step) -> dict[str, Tensor]:
        """F_k at the mixture."""
        return {self.name: client.task.loss(step.out.logits, step.y)}

    def finish(self, client: Client) -> Tree:
        """Store v and a as plain tensors; nothing of them is sent."""
        kept = closed(client.state[self.name])
        client.state[self.name] = kept | {"a": kept["a"].clamp(0, 1)}
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Score the mixture where there is one."""
        kept = scoring.client.state[self.name] if scoring.client else {}
        return self.mixed(net, kept, x).logits if kept else None


@register("apfl", paper="Deng et al., 2020", group="personal")
def apfl() -> Method:
    """FedAvg plus a personal mixture of two models at each client.

    A site trains the shared model and one of its own, and predicts with a mixture of both. The
    share of its own model is learnt from the same batches, so that a site that gains from the
    others keeps more of theirs.

    Use it: sites differ by an unknown amount and each can afford two models.
    Not for: sites that never trained, which have no model of their own to mix.
    Equations: Algorithm 1: `Mixture.phases`; the gradients of v and a: `mixture`.
    """
    return Method((Mixture(),))
