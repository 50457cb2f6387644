"""FedADG from its part, with every client of the same weight."""

from __future__ import annotations

from fedshift import Mean, Method, Uniform, register
from fedshift.methods.fedadg.reference import GeneratedReference


@register("fedadg", paper="Zhang et al., 2021", group="alignment")
def fedadg() -> Method:
    """Features moved to a shared generated distribution of each class.

    A generator that all clients average makes a reference distribution of features per class. Each
    client's own discriminator pushes its features there while it learns the task.

    Use it: for an unseen domain, if all classes occur at every client and rounds are long.
    Not for: short visits, in which three players have no time to settle.
    Equations: D: `judge` and `discriminator_loss`; body and head: `GeneratedReference.loss`.
    """
    return Method((GeneratedReference(),), Mean(Uniform()))
