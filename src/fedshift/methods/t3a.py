"""T3A: the head's weights become means of confident features (Iwasawa and Matsuo, NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import ConfigError, Method, Net, Part, Samples, Scoring, register, setting
from fedshift.methods.shared.adaptation import entropy, outputs


def most_certain(h: Tensor, labels: Tensor, keep: int) -> Tensor:
    """Mask (n,) of the ``keep`` samples of least entropy ``h`` (n,) in each class; 0 keeps all."""
    if not keep:
        return torch.ones(len(h), dtype=torch.bool)
    order = h.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # by class, then by entropy
    sizes = labels.bincount()
    rank = torch.arange(len(h)) - (sizes.cumsum(0) - sizes)[labels[order]]
    return torch.zeros(len(h), dtype=torch.bool).index_fill(0, order[rank < keep], value=True)


def templates(supports: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Normalised mean (K, D) of the normalised supports (n, D) of each class."""
    unit = F.normalize(supports)
    return F.normalize(unit.new_zeros(classes, unit.shape[1]).index_add(0, labels, unit))


@dataclass(frozen=True)
class T3a(Part):
    """At a new site, logits are z . w_c with w_c the mean of the supports of class c.

    Supports are the head's weight of the class and the site's features that the head predicts to be
    of it, of which the ``keep`` of least entropy stay. No gradient, no statistics; the bias becomes
    0. Only the protocol ``unseen-adapted`` has other scores.
    """

    keep: int = setting(20, "supports per class, those of least entropy; 0: all", low=0)
    objectives = frozenset({"classification"})

    def build(self, net: Net) -> None:
        """Raise unless the head is linear."""
        if not isinstance(net.head_module, nn.Linear):
            raise ConfigError(
                f"{self.name} replaces the weights of a linear head, and this backbone's is a "
                f"{type(net.head_module).__name__}; give one with a linear head, or leave it out"
            )

    @torch.no_grad()
    def adapt(self, net: Net, unlabelled: Samples, scoring: Scoring) -> None:
        """Replace the head, in place; without inputs it stays as it is."""
        if not len(unlabelled):
            return
        head = net.head_module
        assert isinstance(head, nn.Linear)
        z, logits = outputs(net, unlabelled)
        supports = torch.cat([head.weight, z])  # (K + n, D)
        h = entropy(torch.cat([head(head.weight), logits]))
        labels = torch.cat([torch.arange(net.classes), logits.argmax(1)])
        used = most_certain(h, labels, self.keep)
        head.weight.copy_(templates(supports[used], labels[used], net.classes))
        if head.bias is not None:
            head.bias.zero_()


@register("t3a", paper="Iwasawa and Matsuo, NeurIPS 2021", group="adaptation")
def t3a() -> Method:
    """FedAvg, with a head of confident features at a new site.

    At a new site each class is represented by the mean of the features that the model is sure of,
    together with the head's own weight. Nothing is trained. Add it to any method: `fedbn + t3a`.

    Use it: a new site has unlabelled inputs, and training there is too costly or too risky.
    Not for: backbones whose head is not linear, or sites where the model is near chance.
    Equations: supports: `most_certain`; templates: `templates`.
    """
    return Method((T3a(),))
