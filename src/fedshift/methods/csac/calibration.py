"""Cross-layer calibration: layers of the fused model near those of the local one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedshift import (
    Client,
    Named,
    Net,
    Output,
    Part,
    Step,
    Tree,
    call_frozen,
    setting,
    tree,
)
from fedshift.methods.csac.attention import ATTENTIONS, same_layer
from fedshift.methods.csac.discrepancy import DISCREPANCIES, alignment, mmd
from fedshift.methods.csac.layers import adopted, new_projections, project


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
