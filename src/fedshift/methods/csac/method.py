"""CSAC: semantic acquisition, divergence-weighted fusion, cross-layer calibration.

Yuan et al., TKDE 2023. In round 1 every client acquires (trains alone for long) and the server
fuses; each later round calibrates the fused model at the clients and fuses again. So the model
scored after round t is the paper's t-th fused model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    Scenario,
    Step,
    Tree,
    call_frozen,
    register,
    setting,
    tree,
)
from fedshift.methods.csac.fusion import DivergenceFusion
from fedshift.methods.csac.layers import (
    ATTENTIONS,
    DISCREPANCIES,
    adopted,
    alignment,
    mmd,
    new_projections,
    project,
    same_layer,
)


def smoothed(y: Tensor, classes: int, alpha: float) -> Tensor:
    """p^c = (1 - alpha) 1(y = c) + alpha / C of Eq. 2, (B, K), from classes (B,) or (B, K)."""
    p = y if y.dim() == 2 else F.one_hot(y, classes).float()
    return (1 - alpha) * p + alpha / classes


def longer(scenario: Scenario, times: float) -> Phase:
    """A phase of ``times`` the scenario's local budget, in whole steps or epochs, at least one."""
    if scenario.steps:
        return Phase(steps=max(1, round(times * scenario.steps)))
    return Phase(epochs=max(1, round(times * (scenario.epochs or 1))))


@dataclass(frozen=True)
class SemanticAcquisition(Part):
    """Round 1: every client trains on its own data from the common start, with smoothed labels.

    The paper gives it 30 x 60 iterations against 10 x 20 in each later round: 9 local budgets.
    FedAvg does not get these extra steps; ``acquisition=1`` compares at an equal budget.
    """

    objectives = frozenset({"classification"})

    smoothing: float = setting(0.1, "label smoothing alpha of Eq. 2", low=0.0, high=1.0)
    acquisition: float = setting(9.0, "length of round 1, in local budgets", low=0.0)
    needs_full_participation = True  # a later client would calibrate before it has acquired

    def phases(self, client: Client) -> Sequence[Phase]:
        """One long phase in round 1, the scenario's budget afterwards."""
        if client.round > 1 or self.acquisition == 1:
            return ()
        return (longer(client.scenario, self.acquisition),)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Eq. 2 in round 1."""
        if client.round > 1 or self.smoothing == 0:
            return batch
        return batch.replace(y=smoothed(batch.y, client.classes, self.smoothing))


@dataclass(frozen=True)
class CrossLayerCalibration(Part):
    """lam * L_AL beside the task loss, Eq. 11: layers of M near those of the local model L^h.

    L^h is the model after the client's first visit: frozen, in eval mode, in the client's state.
    The projections, one per layer and model, are trained together with M on the same loss by the
    scenario's optimiser and stay in that state. Neither is ever sent.
    """

    lam: float = setting(0.6, "weight of the alignment, lambda of Eq. 11", low=0.0)
    layers: str = setting("auto", "stages R, joined by +; auto: the last three that have maps")
    channels: int = setting(0, "channels after projection; 0: the last layer's", low=0)
    projection: str = setting(
        "separate", "projections of the two models", choices=("separate", "common")
    )
    renew: bool = setting(False, "draw the projections anew in each visit, as the released code")
    pairing: str = setting("cross", "pairs of layers", choices=("cross", "same", "none"))
    attention: str = setting("both", "weights of the pairs, Eqs. 7 to 9", choices=[*ATTENTIONS])
    discrepancy: str = setting("mmd", "D of Eq. 6", choices=[*DISCREPANCIES])
    logits: bool = setting(False, "add lam * MMD of the logits, as the released code does")

    @property
    def aligns(self) -> bool:
        """Whether layers are compared at all."""
        return self.lam > 0 and self.pairing != "none"

    def build(self, net: Net) -> None:
        """Add nothing; raise before round 1 if the layers cannot be aligned."""
        if self.aligns:
            adopted(net.shapes(), self.layers)

    def begin(self, client: Client) -> Named:
        """Make the stored projections trainable, or draw new ones, once there is an L^h."""
        kept = client.state[self.name]
        if not (self.aligns and kept):
            return ()
        own = tree.under("projection", kept) or self._drawn(client)
        leaves = {f"projection/{k}": nn.Parameter(v.clone()) for k, v in own.items()}
        client.state[self.name] = {**kept, **leaves}
        return leaves.items()

    def _drawn(self, client: Client) -> Tree:
        """Random projections of each model, or one set for both."""
        sizes = client.net.shapes()
        shapes = [sizes[name] for name in adopted(sizes, self.layers)]
        channels = self.channels or shapes[-1][0]
        return tree.merge(
            tree.prefixed(side, new_projections(shapes, channels, client.generator(self.name)))
            for side in (("both",) if self.projection == "common" else ("fused", "local"))
        )

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The term lam * L_AL of Eq. 11; none for a single sample, which has no distribution."""
        kept = client.state[self.name]
        local = tree.under("local", kept)
        if not local or not (self.aligns or self.logits) or len(step.batch.x) < 2:
            return None
        frozen = call_frozen(client.net, local, step.batch.x)
        terms = (
            [self._align(tree.under("projection", kept), step.out, frozen)] if self.aligns else []
        )
        if self.logits:
            terms.append(mmd(step.out.logits[None], frozen.logits[None]).sum())
        return self.lam * sum(terms[1:], start=terms[0])

    def _align(self, projections: Tree, fused: Output, local: Output) -> Tensor:
        """Eqs. 5 to 9."""
        shapes = {name: tuple(tap.shape[1:]) for name, tap in fused.taps.items()}
        layers = adopted(shapes, self.layers)
        common = tree.under("both", projections)
        a, b = (
            project([out.taps[name] for name in layers], common or tree.under(side, projections))
            for side, out in (("fused", fused), ("local", local))
        )  # (R, B, C, d)
        weigh = same_layer if self.pairing == "same" else ATTENTIONS[self.attention]
        differ = DISCREPANCIES[self.discrepancy]
        return alignment(weigh(a, b), differ(a.flatten(2), b.flatten(2)))

    def finish(self, client: Client) -> Tree:
        """Store L^h at the first visit and keep it, and the projections unless they are redrawn."""
        kept = client.state[self.name]
        own = tree.under("local", kept) or client.net.state_dict()
        projections = {} if self.renew else tree.under("projection", kept)
        trees = tree.prefixed("local", own) | tree.prefixed("projection", projections)
        client.state[self.name] = tree.clone(trees)
        return {}


@register("csac", paper="Yuan et al., TKDE 2023", group="alignment")
def csac() -> Method:
    """Divergence-weighted fusion, cross-layer semantic calibration.

    In round 1 each client trains its own model for long and keeps a frozen copy. The server fuses
    layer by layer, the more weight the further a client is from the mean, and clients train the
    fused model on while its layers are aligned with those of their copy.

    Use it: a model for a domain that nobody has seen is wanted from a few well-filled source sites,
    all present in every round.
    Not for: sampled clients, small or damaged sites (distance is weight), equal budgets, and secure
    aggregation.
    Equations: Eq. 2: `smoothed`; Eq. 3: `gaps`; Eq. 4: `fusion_weights`, `fuse`; Eq. 5: `project`;
    Eq. 6: `alignment`, `mmd`; Eqs. 7 to 9: `position_attention`, `channel_attention`,
    `both_attentions`; Eqs. 10 and 11: `CrossLayerCalibration.loss`.
    """
    return Method((SemanticAcquisition(), CrossLayerCalibration()), DivergenceFusion())
