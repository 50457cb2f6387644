"""What FedKA's client terms share: the schedule of their weight, and features of the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Server, Step, Tree, call_frozen, setting
from fedshift.core.component import Declares
from fedshift.methods.fedka.equations import coefficient, progress
from fedshift.methods.shared.budget import visit_batches

CHUNK = 512  # target inputs per forward at the server


@dataclass(frozen=True)
class Aligned(Declares):
    """What both client terms share: the schedule lambda_p, and features of the target.

    ``target_at="server"``: no client sees an input of the target. Each round the server sends
    ``target_samples`` rows of f_e^G(X_T), computed in eval mode by the encoder that it sends:
    512 x 800 x 4 bytes for the paper's CNN, once per client however many parts read them.
    ``target_at="client"``: the clients hold the target's inputs, as in the released code.
    """

    target_at: str = setting(
        "server", "who holds the target's inputs", choices=("server", "client")
    )
    target_samples: int = setting(512, "target features that the server sends per round", low=2)
    gamma: float = setting(5.0, "slope of lambda_p; 0 makes lambda_p = 0", low=0.0)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Target inputs, at the server or at the clients."""
        return frozenset({_resource(self.target_at)})

    @property
    def shares(self) -> str:  # type: ignore[override]
        """Features of the target, where the server holds its inputs."""
        if self.target_at == "client":
            return ""
        return "features of target inputs, from the server to the clients"

    def lam(self, client: Client, step: Step) -> float:
        """lambda_p at this batch."""
        scenario = client.scenario
        p = progress(
            step.batch.index, visit_batches(client), round_=client.round - 1, rounds=scenario.rounds
        )
        return coefficient(p, self.gamma)

    def send(self, server: Server, client: str) -> Tree:
        """f_e^G(X_T), sent by the first part that needs it; other parts read the same copy."""
        senders = [p.name for p in server.method.parts if isinstance(p, Aligned) and p.sends]
        if self.name != next(iter(senders), None):
            return {}
        if not server.state[self.name]:
            server.state[self.name] = {"target": self._encode(server)}
        return server.state[self.name]

    @property
    def sends(self) -> bool:
        """Whether the server has to encode the target."""
        return self.target_at == "server"

    def refine(self, server: Server) -> None:
        """Drop the features: the next model gives others."""
        server.state.pop(self.name, None)

    def _encode(self, server: Server) -> Tensor:
        """Features (target_samples, D) of random target inputs under the model that is sent."""
        target = server.resources[_resource("server")]
        rows = torch.randperm(len(target), generator=server.generator(self.name))
        model = server.initial | server.shared
        chunks = rows[: self.target_samples].split(CHUNK)
        return torch.cat(
            [call_frozen(server.net, model, target.take(c)[0]).features for c in chunks]
        )

    def sent_features(self, client: Client, n: int, first_batch: int) -> Tensor:
        """``n`` rows (n, D) of the features sent, each used once before any is repeated."""
        held = next(v for k, v in client.inbox.items() if k.endswith("/target"))
        start = first_batch * client.scenario.batch_size
        return held[torch.arange(start, start + n) % len(held)]

    def target_inputs(self, client: Client, n: int) -> Tensor:
        """``n`` random target inputs (n, *shape) at the client."""
        target = client.resources[_resource("client")]
        rows = torch.randint(len(target), (n,), generator=client.generator(self.name))
        return target.take(rows)[0]


def _resource(side: str) -> str:
    return {"server": "server_unlabelled", "client": "client_target_unlabelled"}[side]
