"""Random operations of one strength on each image of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedshift import Batch, Client, Method, ModelSpec, Part, register, setting
from fedshift.methods.randaugment.operations import OPERATIONS, augmented
from fedshift.methods.shared.pixels import from_pixels, require_images, to_pixels

STRONGEST = 30  # the magnitude at which levels are -1 and 1, as in the authors' search space


@dataclass(frozen=True)
class RandAugment(Part):
    """N operations in a row on each image, drawn uniformly of 14, all of strength M out of 30.

    Operations with a direction go either way by the toss of a coin. Nothing is sent.
    """

    operations: int = setting(2, "N: operations per image", low=0)
    magnitude: float = setting(9.0, "M: strength of all operations", low=0.0, high=STRONGEST)

    def check(self, model: ModelSpec) -> None:
        """Raise if inputs are no images."""
        require_images(self.name, model)

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Change pixels, then normalise them again."""
        if not self.operations:
            return batch
        generator, n = client.generator(self.name), len(batch.x)
        x = to_pixels(batch.x.detach(), client.scenario.pixels).clamp(0, 1)
        for _ in range(self.operations):
            chosen = torch.randint(len(OPERATIONS), (n,), generator=generator)
            sign = 1.0 - 2.0 * torch.randint(2, (n,), generator=generator)
            x = augmented(x, chosen, sign * (self.magnitude / STRONGEST))
        return batch.replace(x=from_pixels(x, client.scenario.pixels))


@register("randaugment", paper="Cubuk et al., NeurIPS 2020", group="augmentation")
def randaugment() -> Method:
    """Two random operations of one common strength on each image.

    Rotations, shears, translations and changes of colour and contrast, drawn anew for each image.
    There are two numbers to choose, and both may be the same for all clients.

    Use it: as a plug-in for any method on natural images, above all with few samples per client.
    Not for: images whose orientation, position or colour is the label, and inputs that are none.
    Equations: Fig. 2: `RandAugment.batch`, `augmented`; Section 3: `affine`, `equalise`.
    """
    return Method((RandAugment(),))
