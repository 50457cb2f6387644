"""Episodic learning on images with amplitudes of the bank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Client,
    Method,
    Part,
    Server,
    Step,
    Update,
    call,
    register,
    setting,
)
from fedshift.methods.feddg.bank import AmplitudeBank
from fedshift.methods.shared.amplitude import (
    mix_low_frequencies,
)
from fedshift.methods.shared.pixels import clip_to_pixels
from fedshift.methods.shared.pool import require_part

BANK = AmplitudeBank().name


@dataclass(frozen=True)
class EpisodicLearning(Part):
    """Adds L(x'; w - beta grad L(x; w)), Eqs. 4 and 5: x' is x with another client's amplitude.

    A' = (1 - l) A + l A_bank inside the window, l ~ U(0, 1) and A_bank drawn for each image, the
    phase kept, the result clipped to pixels. L is the task's loss. Under ``first_order`` the inner
    gradient is a constant; otherwise it is differentiated, as in the released code.
    """

    beta: float = setting(0.001, "rate of the inner step", low=0.0)
    weight: float = setting(1.0, "weight of the loss after the inner step", low=0.0)
    first_order: bool = setting(True, "treat the inner gradient as a constant")

    def admit(self, server: Server, enrolments: Sequence[Update]) -> None:
        """Raise if there is no bank."""
        require_part(self, AmplitudeBank, server)

    def loss(self, client: Client, step: Step) -> Tensor:
        """Eq. 5, second term."""
        x = self.restyled(client, step.batch.x)
        named = {k: p for k, p in client.net.named_parameters() if p.requires_grad}
        inner = client.task.loss(step.out.logits, step.y)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            inner,
            list(named.values()),
            retain_graph=True,
            create_graph=not self.first_order,
            allow_unused=True,
        )
        moved = {
            key: p if g is None else p - self.beta * g
            for (key, p), g in zip(named.items(), gradients, strict=True)
        }
        return self.weight * client.task.loss(call(client.net, moved, x).logits, step.y)

    def restyled(self, client: Client, x: Tensor) -> Tensor:
        """Images (B, C, H, W) with mixed amplitudes, Eqs. 2 and 3."""
        bank = client.inbox[f"{BANK}/windows"]
        generator, half = client.generator(self.name), bank.shape[-1] - 1
        rows = torch.randint(len(bank), (len(x),), generator=generator)
        share = torch.rand(len(x), generator=generator)
        return clip_to_pixels(
            mix_low_frequencies(x.detach(), bank[rows], share, half), client.scenario.pixels
        )


@register("feddg", paper="Liu et al., CVPR 2021", group="augmentation")
def feddg() -> Method:
    """Looks of other clients by their amplitudes, in a meta-learning step.

    Clients publish low-frequency amplitudes of some images. Each client gives its images these
    looks and asks that a gradient step on its own look also lowers the loss on the foreign ones.

    Use it: for an unseen domain, if looks differ in brightness and colour and amplitudes may leave.
    Not for: sites whose images may not be described even by their low frequencies.
    Equations: Eqs. 2, 3: `EpisodicLearning.restyled`; Eqs. 4, 5: `EpisodicLearning.loss`.
    """
    return Method((AmplitudeBank(), EpisodicLearning()))
