"""SHOT: features that a frozen head is sure and diverse about (Liang et al., ICML 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import (
    Batch,
    ConfigError,
    Log,
    Method,
    Named,
    Net,
    Optimisation,
    Output,
    Part,
    Samples,
    Scoring,
    Step,
    Turn,
    descend,
    head_keys,
    register,
    setting,
)
from fedshift.methods.shared.adaptation import (
    entropy,
    mean_entropy,
    outputs,
    require_two,
    shuffled_inputs,
)


def nearest_centroid(z: Tensor, weights: Tensor, present: Tensor) -> Tensor:
    """Class (n,) of the nearest centroid by cosine, of the classes that are ``present`` (K,).

    The centroid of class c is the mean of features ``z`` (n, D) with ``weights`` (n, K).
    """
    centroids = weights.T @ z / weights.sum(0).clamp(min=1e-8)[:, None]  # (K, D)
    s = F.normalize(z) @ F.normalize(centroids).T  # (n, K)
    return s.masked_fill(~present, -torch.inf).argmax(1)


def pseudo_labels(z: Tensor, p: Tensor) -> Tensor:
    """Classes (n,) from features ``z`` (n, D) and predictions ``p`` (n, K), in two passes.

    First centroids weigh every feature by its predicted probability, then by the class just found.
    Features are normalised after a 1 is appended; only classes that are predicted take part.
    """
    unit = F.normalize(torch.cat([z, torch.ones(len(z), 1)], 1))
    classes = p.shape[1]
    present = p.argmax(1).bincount(minlength=classes) > 0
    first = nearest_centroid(unit, p, present)
    return nearest_centroid(unit, F.one_hot(first, classes).float(), present)


def body(net: Net) -> Named:
    """Every trainable parameter outside the head."""
    own = head_keys(net)
    return [(k, p) for k, p in net.named_parameters() if k not in own and p.requires_grad]


@dataclass(frozen=True)
class Shot(Part):
    """At a new site, min over the body of mean_i H(p_i) - H(mean_i p_i) + beta CE(pseudo-labels).

    The head is frozen. Pseudo-labels are those of the nearest class centroid of the site's features
    and are found anew before each pass. BatchNorm statistics move to the site's as in training.
    Only the protocol ``unseen-adapted`` has other scores.
    """

    beta: float = setting(0.3, "weight of the cross-entropy with pseudo-labels", low=0.0)
    adapt_epochs: int = setting(
        15, "passes over the site's inputs; 0 leaves the model as it is", low=0
    )
    adapt_lr: float = setting(
        0.001, "rate of SGD with momentum 0.9 and weight decay 0.001", low=0.0
    )
    adapt_batch: int = setting(64, "inputs per step", low=2)
    objectives = frozenset({"classification"})

    def build(self, net: Net) -> None:
        """Raise if there is nothing below the head to train."""
        if not body(net):
            raise ConfigError(
                f"{self.name} trains what is below the head, and this backbone has nothing there "
                "that trains; give one with layers, or leave it out"
            )

    def adapt(self, net: Net, unlabelled: Samples, scoring: Scoring) -> None:
        """One pass of descent after each labelling."""
        if not self.adapt_epochs or not len(unlabelled):
            return
        require_two(self.name, unlabelled)
        chosen = Optimisation(lr=self.adapt_lr, momentum=0.9, weight_decay=0.001)

        def forward(batch: Batch) -> Output:
            out: Output = net(batch.x)
            return out

        turn = Turn(self.name, [*body(net)], forward, self.objective, chosen)
        draw, log = scoring.generator(self.name), Log()
        for _ in range(self.adapt_epochs):
            z, logits = outputs(net, unlabelled)
            known = Samples(unlabelled.x, unlabelled.y.clone(), unlabelled.rows, unlabelled.pixels)
            known.y[known.rows] = pseudo_labels(z, logits.softmax(1))
            descend(net, shuffled_inputs(known, self.adapt_batch, 1, draw), [turn], log)
        log.means(f"{self.name}, new site")
        net.eval()

    def objective(self, step: Step) -> dict[str, Tensor]:
        """Information maximisation, and the pseudo-labels."""
        logits = step.out.logits
        sure = entropy(logits).mean() - mean_entropy(logits)
        return {self.name: sure + self.beta * F.cross_entropy(logits, step.y)}


@register("shot", paper="Liang et al., ICML 2020", group="adaptation")
def shot() -> Method:
    """FedAvg, with features fitted to a frozen head at a new site.

    A new site trains everything below the head, without labels: predictions have to be sure one by
    one and diverse together, and agree with the class centroids. Add it to any method.

    Use it: a new site has some hundreds of unlabelled inputs of all classes, and time to train.
    Not for: sites where some classes are rare or missing, since predictions are kept diverse.
    Equations: diversity: `mean_entropy`; labels: `pseudo_labels`; sum: `Shot.objective`.
    """
    return Method((Shot(),))
