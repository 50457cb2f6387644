"""FedDebias: pseudo-data against biased local classifiers and features (FedBR, ICML 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
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
    Server,
    Step,
    Tree,
    Update,
    call_frozen,
    register,
    setting,
)
from fedshift.methods.feddebias.pseudo_data import (
    PseudoData,
    own_labels,
    pseudo_inputs,
    pseudo_output,
    require_pseudo_data,
)


class Features(NamedTuple):
    """The three features that Eq. 5 compares, paired by row, (B, D) each."""

    pseudo: Tensor  # phi_i(x_p)
    anchor: Tensor  # phi_g(x_p), of the received model
    data: Tensor  # phi_i(x)

    def detach(self) -> Features:
        """The same values without gradient."""
        return Features(*(z.detach() for z in self))


def balance(logits: Tensor, y_p: Tensor | None = None) -> Tensor:
    """Second term of Eq. 3: cross-entropy of logits (B, C) to y_p (B, C), by default 1/C."""
    logs = F.log_softmax(logits, 1)  # (B, C)
    return -(logs.mean(1) if y_p is None else (y_p * logs).sum(1)).mean()


def contrast(near: Tensor, far: Tensor, tau1: float, tau2: float) -> Tensor:
    """Eq. 5 from cosines (B,): mean of -log e^{tau1 near} / (e^{tau1 near} + e^{tau2 far})."""
    return F.softplus(tau2 * far - tau1 * near).mean()


def cosines(
    project: Callable[[Tensor], Tensor], z: Features, overlap: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines (B,) in Eq. 5, to the anchor and to the data, of projected features.

    With ``overlap`` (B,), Eq. 6: the data's contribution to x_p is removed from the second one.
    """
    rest = z.pseudo if overlap is None else z.pseudo - overlap[:, None] * z.data
    rows = [*z, *([] if overlap is None else [rest])]
    pseudo, anchor, data, *other = project(torch.cat(rows)).chunk(len(rows))  # (B, P) each
    near = F.cosine_similarity(pseudo, anchor)
    return near, F.cosine_similarity(other[0] if other else pseudo, data)


@dataclass(frozen=True)
class BalancedOutput(Part):
    """Component 1: lam * cross-entropy of the pseudo-data to its label, second term of Eq. 3."""

    objectives = frozenset({"classification"})

    lam: float = setting(0.1, "weight; the paper has 1 on MNIST and CIFAR100", low=0.0)

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Raise if no part makes pseudo-data."""
        require_pseudo_data(self, server)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The term over all of D_p."""
        if self.lam == 0:
            return None
        return self.lam * balance(pseudo_output(client, step.batch).logits, own_labels(client))


@dataclass(frozen=True)
class ContrastiveProjector(Part):
    """Component 2: max_theta L_con (Eq. 2), then min_{phi, omega} mu L_con (third term of Eq. 3).

    On each batch (Algorithm 1, lines 7 to 11) theta takes an ascent step with the features fixed,
    then the model a descent step with the new theta fixed; both use the same forward pass. theta is
    shared and averaged like the rest. Pseudo-sample j is paired with local sample j; the surplus of
    the longer batch is not used. With mu = 0 neither step is taken.
    """

    objectives = frozenset({"classification"})

    mu: float = setting(0.5, "weight of the contrast", low=0.0)
    tau1: float = setting(2.0, "factor of the cosine to the received model's feature", low=0.0)
    tau2: float = setting(2.0, "factor of the cosine to the local sample's feature", low=0.0)
    max_step: bool = setting(True, "whether the projection is trained")
    projection: str = setting(
        "paper",
        "D-256-256-128; released: D-2D-2D-D; none: features as they are",
        choices=("paper", "released", "none"),
    )
    correction: bool = setting(True, "Eq. 6 where local samples are mixed in; released code: no")
    stale_anchor: bool = setting(
        False, "mixture: received model's features of a visit's first batch only (released code)"
    )
    references = frozenset({"received"})

    def build(self, net: Net) -> None:
        """Add the projection theta, outside the path from input to logits."""
        net.extra[self.name] = self._projection(net.shapes()["features"][0])

    def _projection(self, d: int) -> nn.Module:
        if self.projection == "none":
            return nn.Identity()
        widths = (d, 256, 256, 128) if self.projection == "paper" else (d, 2 * d, 2 * d, d)
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Raise if no part makes pseudo-data."""
        require_pseudo_data(self, server)

    def phases(self, client: Client) -> Sequence[Phase]:
        """Two players per batch: the max step of theta, then the min step of the model."""
        low = Player(train=self.model, forward=self.forward)
        if not self.max_step or self.mu == 0 or self.projection == "none":
            return (Phase((low,)),)
        return (Phase((Player("max-step", self.theta, self.forward, self.objective), low)),)

    def theta(self, client: Client) -> Named:
        """Parameters of the projection."""
        own = {id(p) for p in client.net.extra[self.name].parameters()}
        return [(k, p) for k, p in client.net.named_parameters() if id(p) in own]

    def model(self, client: Client) -> Named:
        """All parameters but the projection's."""
        own = {id(p) for p in client.net.extra[self.name].parameters()}
        return [(k, p) for k, p in client.net.named_parameters() if id(p) not in own]

    def forward(self, client: Client, batch: Batch) -> Output:
        """The net on the batch, once for both players."""
        key = f"{self.name}/output"
        if key not in batch.memo:
            batch.memo[key] = client.net(batch.x)
        out: Output = batch.memo[key]
        return out

    def objective(self, client: Client, step: Step) -> dict[str, Tensor]:
        """Algorithm 1, line 8: ascent in theta with the features fixed."""
        z = self._features(client, step).detach()
        return {f"{self.name}/max": -self._contrast(client, step, z)}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The term mu L_con, with the theta of the max step."""
        if self.mu == 0:
            return None
        return self.mu * self._contrast(client, step, self._features(client, step))

    def finish(self, client: Client) -> Tree:
        """Drop the anchor features; nothing is sent."""
        client.state[self.name] = {}
        return {}

    def _features(self, client: Client, step: Step) -> Features:
        pseudo = pseudo_output(client, step.batch).features
        n = min(len(pseudo), len(step.out.features))
        return Features(pseudo[:n], self._anchor(client, step.batch)[:n], step.out.features[:n])

    def _anchor(self, client: Client, batch: Batch) -> Tensor:
        """phi_g(x_p): computed once per visit, or per batch if x_p changes with each batch."""
        changing = own_labels(client) is not None and not self.stale_anchor
        memo: dict[str, Any] = batch.memo if changing else client.state[self.name]
        key = f"{self.name}/anchor"
        if key not in memo:
            out = call_frozen(client.net, client.received, pseudo_inputs(client))
            memo[key] = out.features
        anchor: Tensor = memo[key]
        return anchor

    def _contrast(self, client: Client, step: Step, z: Features) -> Tensor:
        project = client.net.extra[self.name]
        y_p = own_labels(client) if self.correction else None
        overlap = None if y_p is None else overlaps(y_p[: len(z.data)], step.y[: len(z.data)])
        return contrast(*cosines(project, z, overlap), self.tau1, self.tau2)


def overlaps(y_p: Tensor, y: Tensor) -> Tensor:
    """<y_p, y> of Eq. 6, (B,), for pseudo-labels (B, C) and classes (B,) or soft labels (B, C)."""
    return y_p.gather(1, y[:, None])[:, 0] if y.dim() == 1 else (y_p * y).sum(1)


@register("feddebias", paper="Guo et al., ICML 2023", group="label skew")
def feddebias() -> Method:
    """Pseudo-data balance the classifier and align local features.

    All clients get the same batch of pseudo-data, means of random samples that are close to noise:
    the output on it is kept flat, and a projection learns where local and received features of it
    differ, along which they are then drawn together.

    Use it: clients lack classes, local training is long, and means of inputs may leave the sites.
    Not for: sites that hold every class, sensitive inputs (a mean of few is data), and few local
    steps.
    Equations: Algorithm 2, line 5: `random_sample_means`; Eq. 4: `mixture`; second term of Eq. 3:
    `balance`; Eq. 5: `cosines`, `contrast`; Eq. 6: `overlaps`; Algorithm 1, lines 7 to 11:
    `ContrastiveProjector.phases`.
    """
    return Method((PseudoData(), BalancedOutput(), ContrastiveProjector()))
