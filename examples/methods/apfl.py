"""APFL: each client mixes the shared model with its own (Deng et al., 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fedshift as fs


@dataclass(frozen=True)
class ExampleMixture(fs.Part):
    """A client's model is a v + (1 - a) w: w is shared; v, a and BatchNorm statistics are its own.

    On each batch v and a take a step on the mixture's loss, then w on its own; a stays in [0, 1].
    """

    alpha: float = fs.setting(0.5, "a at the start", low=0.0, high=1.0)
    learn: bool = fs.setting(True, "train a as well")

    def begin(self, client: fs.Client) -> None:
        own = client.state[self.name] or client.received | {"a": torch.tensor(self.alpha)}
        trained = {k for k, _ in client.net.named_parameters()} | ({"a"} if self.learn else set())
        client.state[self.name] = {
            k: nn.Parameter(v.clone()) if k in trained else v.clone() for k, v in own.items()
        }

    def phases(self, client: fs.Client) -> Sequence[fs.Phase]:
        own = fs.Player(self.name, self.trained, self.forward, self.objective)
        return (fs.Phase((own, fs.Player())),)

    def trained(self, client: fs.Client) -> fs.Named:
        return [(k, v) for k, v in client.state[self.name].items() if isinstance(v, nn.Parameter)]

    def forward(self, client: fs.Client, batch: fs.Batch) -> fs.Output:
        client.state[self.name]["a"].data.clamp_(0, 1)  # after each step
        return self.mixed(client.net, client.state[self.name], batch.x)

    def mixed(self, net: fs.Net, own: fs.Tree, x: Tensor) -> fs.Output:
        a, shared = own["a"].clamp(0, 1), {k: w.detach() for k, w in net.named_parameters()}
        model = {k: a * v + (1 - a) * shared[k] if k in shared else v for k, v in own.items()}
        return fs.call(net, {k: v for k, v in model.items() if k != "a"}, x)

    def objective(self, client: fs.Client, step: fs.Step) -> dict[str, Tensor]:
        return {self.name: client.task.loss(step.out.logits, step.y)}

    def predict(self, net: fs.Net, x: Tensor, scoring: fs.Scoring) -> Tensor | None:
        own = scoring.client.state[self.name] if scoring.client else {}
        return self.mixed(net, own, x).logits if own else None


@fs.register("example-apfl", paper="Deng et al., 2020")
def apfl() -> fs.Method:
    """FedAvg plus a personal mixture at each client."""
    return fs.Method((ExampleMixture(),))
