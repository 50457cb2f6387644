"""FedRoD: a balanced head for everybody, a personal one beside it (Chen and Chao, ICLR 2022)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import Client, Method, Named, Net, Output, Part, Scoring, Step, Tree, register
from fedshift.methods.shared.branch import closed, leaves

NONE = -1e9  # in place of log 0: the class leaves the sum, and 0 times it is still 0


def balanced(logits: Tensor, counts: Tensor) -> Tensor:
    """Logits z_c + log n_c, (B, K), for a client with ``counts`` (K,) samples of each class.

    Cross-entropy of them is the balanced softmax: z is then fitted as if all classes were equally
    frequent. A class without samples gets no gradient.
    """
    prior = counts.to(logits).log().clamp(min=NONE)  # (K,)
    return logits + prior


class BalancedSoftmax(Part):
    """The task loss is CE(z + log n_k), n_k (K,) the client's class counts, which stay with it."""

    objectives = frozenset({"classification"})

    def task_loss(self, client: Client, step: Step) -> Tensor:
        """In place of the cross-entropy of z."""
        counts = client.site.data.train.labels.bincount(minlength=client.classes)
        return client.task.loss(balanced(step.out.logits, counts), step.y)


class PersonalHead(Part):
    """A linear head h_k of the client's own learns from CE(g + h_k(f)), and g + h_k is scored.

    g are the logits of the shared head and f the features, both held fixed, so that h_k changes
    nothing of the shared model. It starts at zero and stays in the client's state.
    """

    objectives = frozenset({"classification"})

    def begin(self, client: Client) -> Named:
        """The personal head is trained along with the net."""
        (width,) = client.net.shapes()["features"]
        zeros = next(client.net.parameters()).new_zeros
        new = {"weight": zeros(client.classes, width), "bias": zeros(client.classes)}
        kept = client.state[self.name] or new
        client.state[self.name] = {key: nn.Parameter(value.clone()) for key, value in kept.items()}
        return leaves(client.state[self.name])

    def loss(self, client: Client, step: Step) -> Tensor:
        """The empirical risk of both heads together; its gradient is the personal head's alone."""
        return client.task.loss(self.both(client, step.out), step.y)

    def both(self, client: Client, out: Output) -> Tensor:
        """Logits (B, K) of the two heads together."""
        head = client.state[self.name]
        return out.logits.detach() + F.linear(out.features.detach(), head["weight"], head["bias"])

    def finish(self, client: Client) -> Tree:
        """Store the head as plain tensors; nothing of it is sent."""
        client.state[self.name] = closed(client.state[self.name])
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """Both heads at a client, the shared one elsewhere."""
        if scoring.client is None or not scoring.client.state[self.name]:
            return None
        return self.both(scoring.client, net(x))


@register("fedrod", paper="Chen and Chao, ICLR 2022", group="personal")
def fedrod() -> Method:
    """A balanced model for everybody, and a head of its own for each site.

    The shared model is trained as if every site had as many samples of each class, so that the
    sites pull it less apart. A second head at each site learns what the balancing takes away, the
    site's own classes, and is added to the first.

    Use it: both one model for all and one per site are wanted, and the sites' classes differ.
    Not for: multi-label targets and regression, or sites that differ in their looks alone.
    Equations: the balanced risk: `balanced`; the personal risk: `PersonalHead.loss`.
    """
    return Method((BalancedSoftmax(), PersonalHead()))
