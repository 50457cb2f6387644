"""FDSE: personal layers erase domain skew, consensus on the rest (Wang et al., CVPR 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedshift import (
    Batch,
    Client,
    ConfigError,
    DataError,
    Log,
    Method,
    ModelSpec,
    Named,
    Net,
    Optimisation,
    Output,
    Part,
    Samples,
    Scope,
    Scoring,
    Step,
    Tree,
    Turn,
    descend,
    register,
    setting,
    shuffled_rows,
    tree,
)
from fedshift.methods.fdse.consensus import LayerConsensus, SimilarityMixing
from fedshift.methods.fdse.layers import (
    COUNT,
    FORMS,
    MEAN,
    VARIANCE,
    LayerForm,
    decompose,
    decomposed,
)

ADAPT_BATCH = 50  # the paper's batch size


@dataclass(frozen=True)
class DecomposeLayers(Part):
    """Every conv and linear layer but the head becomes DFE and DSE (Eqs. 2 and 3).

    DFE convs, BN_DFE and the head are shared. f_DSE, the affine map of BN_DSE and the additive
    bias are personal: uploaded, one value per client. The statistics of BN_DSE are private.
    """

    G: int = setting(2, "channels of a layer per channel of its extractor", low=1)
    form: str = setting(
        "ghost", "identity and G - 1 maps (convs), or G maps as in Eq. 3", choices=FORMS
    )
    padding: str = setting(
        "same", "of the extractor: that of the layer; released: half", choices=("same", "half")
    )
    inner_relu: bool = setting(True, "ReLU between BN_DSE and f_DSE; later release: false")
    erasers: str = setting(
        "personal", "whose the erasers are; shared: one for all", choices=("personal", "shared")
    )
    leave: str = setting("", "modules to keep whole, by path, between spaces")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.G == 1 and self.form != "literal":
            raise ConfigError(
                f"decompose-layers.G is 1, which leaves form={self.form} no map to erase with; "
                "use G=2 or form=literal"
            )

    def build(self, net: Net) -> None:
        """Sec. 4.1, in place."""
        decompose(net, LayerForm(self.G, self.form, self.padding, self.inner_relu), self.leave)

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Sec. 4.3, by module."""
        if self.erasers == "shared":
            return {}
        out: dict[str, Scope] = {}
        for path, layer in decomposed(net):
            out |= {f"{path}.{key}": Scope.PERSONAL for key, _ in layer.erasers()}
            buffers = layer.bn_dse.named_buffers(f"{path}.bn_dse")
            out |= {key: Scope.PRIVATE for key, _ in buffers}
        return out


def running(before: Tensor, now: Tensor, gamma: float) -> Tensor:
    """Eq. 5: ``gamma before + (1 - gamma) now``; gradient through ``now`` only."""
    return gamma * before.detach() + (1 - gamma) * now


def layer_gap(mean: Tensor, variance: Tensor, mean_g: Tensor, variance_g: Tensor) -> Tensor:
    """Eq. 6: |mu - mu_g|^2 / d + ((|var|_1 - |var_g|_1) / d)^2 of one layer, (d,) each."""
    return (mean - mean_g).square().mean() + (variance.mean() - variance_g.mean()).square()


def depth_weights(layers: int, beta: float) -> list[float]:
    """Eq. 7: ``exp(beta l) / sum_l exp(beta l)`` for l = 1..L."""
    return torch.softmax(beta * torch.arange(1, layers + 1, dtype=torch.float64), 0).tolist()


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

        optimisation = Optimisation(lr=self.adapt_lr)
        turn = Turn(self.name, list(erasers(net)), partial(erase, net), objective, optimisation)
        watch(net, True)
        try:
            descend(net, self.inputs(unlabelled), [turn], Log())
        finally:
            watch(net, False)

    def inputs(self, unlabelled: Samples) -> Iterator[Batch]:
        """Batches of a new site's inputs; the caller has seeded the global generator."""
        rows = shuffled_rows(
            len(unlabelled),
            ADAPT_BATCH,
            torch.default_generator,
            epochs=self.adapt_epochs,
            steps=None,
        )
        for positions in rows:
            yield Batch(*unlabelled.take(positions))


def trained(net: Net, entries: Mapping[str, Tensor]) -> bool:
    """Whether a batch has moved the statistics of BN_DFE; one synchronisation."""
    first = decomposed(net)[0][1]
    return bool(entries[f"{first.norm_path}.num_batches_tracked"])


def targets(net: Net, entries: Mapping[str, Tensor]) -> Tree:
    """mu_g and var_g of every layer."""
    out: Tree = {}
    for l, (_, layer) in enumerate(decomposed(net)):  # noqa: E741
        out[f"{MEAN}/{l}"] = entries[f"{layer.norm_path}.running_mean"]
        out[f"{VARIANCE}/{l}"] = entries[f"{layer.norm_path}.running_var"]
    return out


def watch(net: Net, on: bool) -> None:
    """Switch the recording of every layer's output statistics on or off, in place."""
    for _, layer in decomposed(net):
        layer.watched = on


def erasers(net: Net) -> Named:
    """Every layer's eraser, by name in the net."""
    return [(f"{p}.{key}", w) for p, layer in decomposed(net) for key, w in layer.erasers()]


def erase(net: Net, batch: Batch) -> Output:
    """Forward pass in eval mode, except that BN_DSE uses and updates batch statistics."""
    net.eval()
    for _, layer in decomposed(net):
        layer.bn_dse.train()
    out: Output = net(batch.x)
    return out


@register("fdse", paper="Wang et al., CVPR 2025", group="personal")
def fdse() -> Method:
    """Personal layers erase domain skew; consensus on the rest.

    Every layer is taken apart into an extractor that all sites share and a cheap eraser of each
    site, and a term pulls the statistics of erased features to the shared ones. The server moves
    shared layers in a direction that opposes no client and mixes the erasers of clients that are
    alike.

    Use it: every site wants a good model of its own, data look different from site to site, and new
    sites have unlabelled inputs.
    Not for: secure aggregation, backbones with attention or grouped convolutions, pretrained
    weights, and runs of few rounds.
    Equations: Eqs. 2 and 3: `Decomposed`, `extractor`; Eq. 4: `batch_statistics`; Eq. 5: `running`;
    Eq. 6: `layer_gap`; Eq. 7: `depth_weights`, `StatisticsConsistency.consistency`; Eq. 8:
    `min_norm_weights`, `consensus`; Eq. 9: `similarity_weights`; Sec. 5.4:
    `StatisticsConsistency.adapt`.
    """
    parts = (DecomposeLayers(), StatisticsConsistency(), SimilarityMixing())
    return Method(parts, LayerConsensus())
