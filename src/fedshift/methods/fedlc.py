"""FedLC: logits calibrated by the client's class counts (Zhang et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedshift import Client, Method, Part, Step, register, setting
from fedshift.methods.shared.targets import soft_targets

NEVER = -1e9  # logit of a class without samples: e^NEVER is 0, and 0 * NEVER is not NaN


def calibrated(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """z_c - tau n_c^(-1/4), (B, K), from logits (B, K) and counts (K,) of the client's samples.

    A class without samples gets no probability, the limit of n^(-1/4); so it gets no gradient.
    """
    if tau == 0:
        return logits
    margin = tau * counts.clamp(min=1).to(logits.dtype) ** -0.25  # (K,)
    return (logits - margin).masked_fill(counts == 0, NEVER)


def held_targets(y: Tensor, counts: Tensor) -> Tensor:
    """Targets (B,), or (B, K) limited to classes with samples: smoothed labels lose the others."""
    if not y.is_floating_point():
        return y
    held = soft_targets(y, len(counts)) * (counts > 0)  # (B, K)
    return held / held.sum(1, keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True)
class LogitCalibration(Part):
    """Cross-entropy of z_c - tau n_c^(-1/4), n_c the client's number of samples of class c.

    The smaller a class, the larger the margin that its samples have to reach. Nothing but the
    model is sent; the counts stay at the client, and the scored model is not calibrated.
    """

    objectives = frozenset({"classification"})

    tau: float = setting(1.0, "strength of the calibration", low=0.0)

    def begin(self, client: Client) -> None:
        """Count the client's classes."""
        labels = client.site.data.train.labels
        client.scratch[self.name]["counts"] = labels.bincount(minlength=client.classes)

    def task_loss(self, client: Client, step: Step) -> Tensor:
        """In place of the plain cross-entropy."""
        counts = client.scratch[self.name]["counts"]
        y = held_targets(step.y, counts) if self.tau else step.y
        return client.task.loss(calibrated(step.out.logits, counts, self.tau), y)


@register("fedlc", paper="Zhang et al., ICML 2022", group="label skew")
def fedlc() -> Method:
    """FedAvg with larger margins for a client's rare classes.

    Before the softmax each logit is lowered by a term that grows as the client has fewer samples of
    the class. Rare classes are learnt with a margin; classes that a client lacks are left alone.

    Use it: when clients hold very different numbers of samples per class, or lack classes.
    Not for: clients with about equal class counts, where it is FedAvg.
    Equations: calibrated cross-entropy: `calibrated`; local update: `LogitCalibration.task_loss`.
    """
    return Method((LogitCalibration(),))
