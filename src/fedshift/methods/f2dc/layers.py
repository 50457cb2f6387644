"""F2DC's modules: split a feature map by a learnt mask, correct one part (Wang et al., 2026)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedshift import Neck, seeds

TINY = 1e-7  # keeps the logarithm of a uniform draw finite in single precision


def concrete_mask(scores: Tensor, noise: Tensor | float, sigma: float) -> Tensor:
    """Eq. 3: e^{(log p + g_a)/sigma} / (e^{(log p + g_a)/sigma} + e^{(log(1-p) + g_b)/sigma}).

    With p = sigmoid(S) this is sigmoid((S + g_a - g_b) / sigma); ``noise`` is g_a - g_b. Towards
    sigma = 0 it is the step at S + noise = 0.

    Examples:
        >>> concrete_mask(torch.tensor([-2.0, 0.0, 2.0]), 0.0, 0.01).tolist()
        [0.0, 0.5, 1.0]
    """
    return ((scores + noise) * (1 / sigma)).sigmoid()


def related_part(maps: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 4: 1 - M and f- = (1 - M) f; the rest of f is f+ = M f."""
    rest = 1 - mask
    return rest, rest * maps


def correction(rest: Tensor, residual: Tensor) -> Tensor:
    """The second term of Eq. 6, (1 - M) A_C(f-); with it f* = f- + this and f~ = f + this.

    The sum f~ = f+ + f* = f+ + f- + (1 - M) A_C(f-) needs neither f+ nor f*.
    """
    return rest * residual


def pool(maps: Tensor) -> Tensor:
    """Mean over positions (B, C); by a sum, whose gradient is a view and needs no map in memory."""
    return maps.sum((2, 3)) / (maps.shape[2] * maps.shape[3])


def logistic_like(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw log u - log(1 - u): distributed like a difference of two Gumbel draws, cheaper."""
    uniform = torch.empty_like(like).uniform_(generator=generator)
    return uniform.logit_(eps=TINY)


class Mask(nn.Module):
    """M of Eq. 3: noisy while training, sigmoid(S / sigma) at inference."""

    def __init__(self, sigma: float, *, draws: int, at_test: bool) -> None:
        super().__init__()
        self.sigma, self.draws, self.at_test = sigma, draws, at_test

    def forward(self, scores: Tensor) -> Tensor:
        """Mask (B, C, H, W) of scores (B, C, H, W)."""
        if not (self.training or self.at_test):
            return concrete_mask(scores, 0.0, self.sigma)
        # At inference the draw is fixed, so that scoring twice gives the same result.
        generator = None if self.training else seeds.generator("f2dc", "noise at test")
        noise = logistic_like(scores, generator)
        if self.draws == 2:  # symmetric, so the sum has the distribution of the difference
            noise = noise + logistic_like(scores, generator)
        return concrete_mask(scores, noise, self.sigma)


def convolutions(channels: int, width: int, depth: int) -> nn.Sequential:
    """C -> width -> ... -> C by ``depth`` conv 3x3, BatchNorm and ReLU between, no bias."""
    layers: list[nn.Module] = []
    inside = channels
    for _ in range(depth - 1):
        layers += [
            nn.Conv2d(inside, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        inside = width
    return nn.Sequential(*layers, nn.Conv2d(inside, channels, 3, padding=1, bias=False))


class DecouplingNeck(Neck):
    """A_D, A_C and m after one stage: f in, f~ = f+ + f* out.

    While training it also returns ``pooled`` (3, B, C), the means l+, l-, l* over positions, and
    ``logits`` (3, B, K), m of them. ``scored`` chooses the map passed on at inference.
    """

    def __init__(
        self, channels: int, classes: int, *, mask: Mask, width: int, depth: int, scored: str
    ) -> None:
        super().__init__()
        self.decoupler = convolutions(channels, width, depth)  # A_D
        self.corrector = convolutions(channels, width, depth)  # A_C
        self.classifier = nn.Linear(channels, classes)  # m
        self.mask = mask
        self.scored = scored

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Maps (B, C, H, W) to maps of the same shape."""
        mask = self.mask(self.decoupler(maps))  # (B, C, H, W)
        rest, related = related_part(maps, mask)
        corrected = correction(rest, self.corrector(related))
        final = maps + corrected
        if not self.training:
            return self._choice(maps, related, corrected, final), {}
        related_pooled = pool(related)  # l-, (B, C)
        robust_pooled = pool(maps) - related_pooled  # l+
        rectified_pooled = related_pooled + pool(corrected)  # l*
        pooled = torch.stack([robust_pooled, related_pooled, rectified_pooled])  # (3, B, C)
        return final, {"pooled": pooled, "logits": self.classifier(pooled)}

    def _choice(self, maps: Tensor, related: Tensor, corrected: Tensor, final: Tensor) -> Tensor:
        """The map that is passed on at inference."""
        if self.scored == "final":
            return final
        if self.scored == "robust":
            return maps - related
        return related if self.scored == "related" else related + corrected
