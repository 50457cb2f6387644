"""The offline model of a client, which never leaves it but for its head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    ModelSpec,
    Named,
    Net,
    Output,
    Part,
    PayloadSpec,
    Phase,
    Player,
    Scoring,
    Server,
    Step,
    Tree,
    Update,
    Uploads,
    call,
    call_frozen,
    head_keys,
    setting,
    tree,
)
from fedshift.core.part import whole_net
from fedshift.methods.fed_co2.transfer import distillation, loss_under_heads
from fedshift.methods.shared.branch import closed, leaves, opened


@dataclass(frozen=True)
class OfflineModel(Part):
    """An offline model of each client beside the shared, online one; their summed logits decide.

    From a client's second visit on, both first learn from each other: one pass of KL, in which the
    teachers are both models as the visit began. Then each minimises CE + lam * sum_j CE(h_j(f)), f
    its own features and h_j the offline heads of the other clients, held fixed. A client sends its
    offline head after training and gets the last heads of all others; the rest stays in its state.
    """

    lam: float = setting(1.0, "weight of each other client's head", low=0.0)
    distil_epochs: int = setting(1, "passes of mutual distillation before training", low=0)
    objectives = frozenset({"classification"})
    references = frozenset({"received"})
    min_clients = 2
    needs_individual_updates = True
    shares = "the head of its offline model"

    def uploads(self, model: ModelSpec) -> Uploads:
        """One head, in the shapes of the net's."""
        entries = model.net.state_dict()
        form = {
            k: PayloadSpec(tuple(entries[k].shape), entries[k].dtype)
            for k in sorted(self.head(model.net))
        }
        return {"train": form}

    @staticmethod
    def head(net: Net) -> set[str]:
        """The head's parameters."""
        return head_keys(net) & {name for name, _ in net.named_parameters()}

    def begin(self, client: Client) -> None:
        """Open the offline model, which starts at the first received one; keep both teachers."""
        kept = client.state[self.name]
        client.scratch[self.name]["teacher"] = tree.clone(kept)
        client.state[self.name] = opened(client, kept or client.received)

    def phases(self, client: Client) -> Sequence[Phase]:
        """Mutual distillation where both models have been trained before, then training."""
        trained = Phase((Player(), Player(self.name, self.branch, self.forward, self.objective)))
        if not client.scratch[self.name]["teacher"] or not self.distil_epochs:
            return (trained,)
        online = Player("online", whole_net, objective=self.from_offline)
        offline = Player("offline", self.branch, self.forward, self.from_online)
        return (Phase((online, offline), epochs=self.distil_epochs), trained)

    def branch(self, client: Client) -> Named:
        """Parameters of the offline model."""
        return leaves(client.state[self.name])

    def forward(self, client: Client, batch: Batch) -> Output:
        """The net with the offline model's entries."""
        return call(client.net, client.state[self.name], batch.x)

    def from_offline(self, client: Client, step: Step) -> Tree:
        """The online model learns from the offline one."""
        teacher = call_frozen(client.net, client.scratch[self.name]["teacher"], step.batch.x)
        return {"distil/online": distillation(step.out.logits, teacher.logits)}

    def from_online(self, client: Client, step: Step) -> Tree:
        """The offline model learns from the online one."""
        teacher = client.reference("received", step.batch)
        assert teacher is not None
        return {"distil/offline": distillation(step.out.logits, teacher.logits)}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The other clients' heads on these features, added up."""
        heads = client.payload(self)
        if not self.lam or not heads:
            return None
        return self.lam * loss_under_heads(client, step, heads)

    def objective(self, client: Client, step: Step) -> Tree:
        """The same for the offline model."""
        others = self.loss(client, step)
        terms = {f"{self.name}/task": client.task.loss(step.out.logits, step.y)}
        return terms if others is None else terms | {f"{self.name}/others": others}

    def finish(self, client: Client) -> Tree:
        """Store the offline model, and send its head."""
        client.state[self.name] = closed(client.state[self.name])
        return tree.pick(client.state[self.name], self.head(client.net))

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Keep the newest head of each client."""
        new = [tree.prefixed(u.client, tree.under(self.name, u.payload)) for u in updates]
        server.state[self.name] = server.state[self.name] | tree.merge(new)

    def send(self, server: Server, client: str) -> Tree:
        """Heads (n - 1, ...) of the other clients; the initial one of those that have sent none."""
        kept, others = server.state[self.name], sorted(server.roster.keys() - {client})
        return {
            k: torch.stack([kept.get(f"{c}/{k}", server.initial[k]) for c in others])
            for k in sorted(self.head(server.net))
        }

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """The sum of both models' logits; the online model alone where there is no offline one."""
        branch = scoring.client.state[self.name] if scoring.client else {}
        online: Output = net(x)
        return online.logits + call(net, branch, x).logits if branch else online.logits
