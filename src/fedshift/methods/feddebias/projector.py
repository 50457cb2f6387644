"""Component 2: a projection finds where features differ, along which they are drawn together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
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
    setting,
)
from fedshift.methods.feddebias.contrast import Features, contrast, cosines, overlaps
from fedshift.methods.feddebias.pseudo_output import (
    own_labels,
    pseudo_inputs,
    pseudo_output,
    require_pseudo_data,
)


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
