"""Statistics of the erased features near the shared ones, in training and at a new site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedshift import (
    Client,
    ConfigError,
    DataError,
    Log,
    ModelSpec,
    Net,
    Optimisation,
    Output,
    Part,
    Samples,
    Scoring,
    Step,
    Tree,
    Turn,
    descend,
    setting,
    tree,
)
from fedshift.methods.fdse.decompose import COUNT, MEAN, VARIANCE, decomposed
from fedshift.methods.fdse.observed import erase, erasers, targets, trained, watch
from fedshift.methods.fdse.statistics import depth_weights, layer_gap, running
from fedshift.methods.shared.adaptation import shuffled_inputs

ADAPT_BATCH = 50  # the paper's batch size


@dataclass(frozen=True)
class StatisticsConsistency(Part):
    """lam * L_con: pulls statistics of the erased features to the shared ones (Eqs. 4 to 7).

    The features are BN_DFE's inputs, the targets its statistics as received. Left out while those
    are still the initial ones, hence in round 1. ``adapt`` fits the erasers of a new site to its
    unlabelled inputs by L_con alone.
    """

    lam: float = setting(0.5, "weight of the consistency", low=0.0)
    beta: float = setting(0.001, "growth of the weight with depth")
    gamma: float = setting(0.9, "momentum of the running statistics, Eq. 5", low=0.0, high=1.0)
    statistics: str = setting(
        "per-channel",
        "of the batch; released: channel-average",
        choices=("per-channel", "channel-average"),
    )
    adapt_epochs: int = setting(5, "passes over a new site's inputs", low=0)
    adapt_lr: float = setting(0.05, "rate of SGD at a new site", low=0.0)

    def build(self, net: Net) -> None:
        """Raise if no layer is decomposed, since there is nothing to regularise."""
        if not decomposed(net):
            raise ConfigError(
                "statistics-consistency acts on decomposed layers and finds none; put "
                "decompose-layers before it"
            )

    def check(self, model: ModelSpec) -> None:
        """Require that the targets are shared; each client's own would be no common aim."""
        for path, layer in decomposed(model.net):
            if f"{layer.norm_path}.running_mean" not in model.shared:
                raise ConfigError(
                    f"{self.name} pulls features to statistics that all clients share, and those "
                    f"behind {path} stay at each client; leave out what keeps them there "
                    f"(bn=local, fedbn), or write fdse - {self.name}"
                )

    def begin(self, client: Client) -> None:
        """mu_hat and var_hat start at the received statistics."""
        started = trained(client.net, client.received)
        watch(client.net, started)
        client.scratch[self.name] = targets(client.net, client.received) if started else {}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Eq. 7; the running statistics last for one visit."""
        before = client.scratch[self.name]
        if not before:
            return None
        wanted = targets(client.net, client.received)
        term, client.scratch[self.name] = self.consistency(step.out, before, wanted)
        return self.lam * term

    def consistency(self, out: Output, before: Tree, wanted: Tree) -> tuple[Tensor, Tree]:
        """L_con of a forward pass, and the running statistics after it."""
        layers = len(wanted) // 2
        seen = self.seen(out, layers)
        now = {k: running(before[k], seen[k], self.gamma) for k in wanted}
        terms = []
        for l, w in enumerate(depth_weights(layers, self.beta)):  # noqa: E741
            mean, variance = f"{MEAN}/{l}", f"{VARIANCE}/{l}"
            found = now[mean], now[variance]
            if self.statistics == "channel-average":
                found = self.averaged(*found, out.aux[mean])
            terms.append(w * layer_gap(*found, wanted[mean], wanted[variance]))
        return torch.stack(terms).sum(), {k: v.detach() for k, v in now.items()}

    def seen(self, out: Output, layers: int) -> Mapping[str, Tensor]:
        """Statistics of this pass by Eq. 4; as released, the variances are unbiased as BN's are."""
        if self.statistics == "per-channel":
            return out.aux
        counts = {l: out.aux[f"{COUNT}/{l}"] for l in range(layers)}  # noqa: E741
        unbiased = {
            f"{VARIANCE}/{l}": out.aux[f"{VARIANCE}/{l}"] * (n / (n - 1))
            for l, n in counts.items()  # noqa: E741
        }
        return out.aux | unbiased

    def averaged(self, mean: Tensor, variance: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The released code: mean and variance *over channels* of the batch means (d,)."""
        return running(mean, seen.mean(), self.gamma), running(variance, seen.var(), self.gamma)

    def finish(self, client: Client) -> Tree:
        """Watch no longer; nothing is sent."""
        watch(client.net, False)
        return {}

    def adapt(self, net: Net, unlabelled: Samples, scoring: Scoring) -> None:
        """Sec. 5.4: only the erasers learn, BN_DSE takes the site's statistics, BN_DFE is fixed."""
        if len(unlabelled) < 2:
            raise DataError(
                f"a new site gives {len(unlabelled)} input(s) to adapt to; BatchNorm needs 2: give "
                "more, or score the protocol unseen"
            )
        if not self.adapt_epochs or not trained(net, net.state_dict()):
            return
        wanted = tree.clone(targets(net, net.state_dict()))
        kept = dict(wanted)

        def objective(step: Step) -> dict[str, Tensor]:
            term, after = self.consistency(step.out, kept, wanted)
            kept.update(after)
            return {self.name: term}

        inputs = shuffled_inputs(  # the caller has seeded the global generator
            unlabelled, ADAPT_BATCH, self.adapt_epochs, torch.default_generator
        )
        optimisation = Optimisation(lr=self.adapt_lr)
        turn = Turn(self.name, list(erasers(net)), partial(erase, net), objective, optimisation)
        watch(net, True)
        try:
            descend(net, inputs, [turn], Log())
        finally:
            watch(net, False)
