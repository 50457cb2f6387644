"""TENT: confident predictions by BatchNorm's affine parameters (Wang et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from fedshift import (
    Batch,
    ConfigError,
    Log,
    Method,
    Net,
    Optimisation,
    Output,
    Part,
    Samples,
    Scoring,
    Step,
    Turn,
    descend,
    estimate_statistics,
    register,
    setting,
)
from fedshift.methods.shared.adaptation import (
    entropy,
    require_two,
    shuffled_inputs,
    trained_batch_norms,
)


def affine(net: Net) -> list[tuple[str, nn.Parameter]]:
    """Weight and bias of every BatchNorm that is not fixed."""
    layers = trained_batch_norms(net)
    return [(f"{path}.{k}", p) for path, layer in layers for k, p in layer.named_parameters()]


def by_batch(net: Net, batch: Batch) -> Output:
    """Forward pass in eval mode, except that BatchNorm normalises by the batch."""
    net.eval()
    for _, layer in trained_batch_norms(net):
        layer.train()
    out: Output = net(batch.x)
    return out


@dataclass(frozen=True)
class Tent(Part):
    """At a new site, min over gamma, beta of mean_i H(p_i), one Adam step per batch.

    H is the entropy of a prediction, gamma and beta scale and shift every BatchNorm. The batches
    are drawn at random, so they mix classes as those of the site do. At last the statistics are
    estimated anew on all inputs. Only the protocol ``unseen-adapted`` has other scores.
    """

    adapt_lr: float = setting(0.001, "rate of Adam", low=0.0)
    adapt_epochs: int = setting(
        1, "passes over the site's inputs; 0 leaves the model as it is", low=0
    )
    adapt_batch: int = setting(64, "inputs per step", low=2)
    objectives = frozenset({"classification"})

    def build(self, net: Net) -> None:
        """Raise if there is nothing to adapt."""
        if not affine(net):
            raise ConfigError(
                f"{self.name} trains the scale and shift of BatchNorm, and this backbone has none; "
                "give one with BatchNorm, or leave it out"
            )

    def adapt(self, net: Net, unlabelled: Samples, scoring: Scoring) -> None:
        """Minimise the entropy, then take the site's statistics."""
        if not self.adapt_epochs or not len(unlabelled):
            return
        require_two(self.name, unlabelled)

        def objective(step: Step) -> dict[str, Tensor]:
            return {self.name: entropy(step.out.logits).mean()}

        chosen = Optimisation("adam", lr=self.adapt_lr)
        turn = Turn(self.name, affine(net), partial(by_batch, net), objective, chosen)
        draw = scoring.generator(self.name)
        log = Log()
        descend(
            net, shuffled_inputs(unlabelled, self.adapt_batch, self.adapt_epochs, draw), [turn], log
        )
        log.means(f"{self.name}, new site")
        estimate_statistics(net, unlabelled.chunks(self.adapt_batch))


@register("tent", paper="Wang et al., ICLR 2021", group="adaptation")
def tent() -> Method:
    """FedAvg, adapted to a new site by confident predictions.

    A new site's own inputs, without labels, tune the scale and shift of BatchNorm so that the model
    becomes sure of its predictions. Add it to any method: `fedbn + tent`.

    Use it: a new site has unlabelled inputs of all classes and the model is mostly right there.
    Not for: sites with one class or few inputs, or a model that is wrong: it becomes surely wrong.
    Equations: entropy: `entropy`; parameters: `affine`; batch statistics: `by_batch`.
    """
    return Method((Tent(),))
