"""Feature highlighter: attention to what two samples of a class have in common."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
    Neck,
    Net,
    Part,
    Tree,
)
from fedshift.methods.shared.stages import chosen_stages
from fedshift.methods.shared.targets import soft_targets


def next_of_class(y: Tensor) -> Tensor:
    """For each sample (B,) the next one of its class in the batch, around its end; or itself."""
    n, y = len(y), y.cpu()
    ahead = (torch.arange(n)[None, :] - torch.arange(n)[:, None] - 1) % n  # 0 is the next row
    return torch.where(y[:, None] == y, ahead, n).argmin(1)


class Highlighter(Neck):
    """Attention over positions by queries of two samples of a class; see feature-highlighter."""

    def __init__(self, channels: int, width: int = 30) -> None:
        super().__init__()
        self.query, self.key = (nn.Conv2d(channels, width, 1) for _ in range(2))
        self.partner: Tensor | None = None  # (B,) of the present training batch

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Maps (B, C, H, W) to maps of the same shape; alone, a sample is its own partner."""
        n, (height, width) = len(maps), maps.shape[2:]
        partner = self.partner if self.training else None
        if partner is None or len(partner) != n:
            partner = torch.arange(n)
        q, k = (F.normalize(f(maps).flatten(2), dim=1) for f in (self.query, self.key))
        scores = ((q + q[partner]) / 2).transpose(1, 2) @ k  # (B, HW, HW)
        weights = scores.mean(1).softmax(1).view(n, 1, height, width)
        return maps * (1 + height * width * weights) / 2, {}


class FeatureHighlighter(Part):
    """The last maps weighted by attention to what two samples of a class have in common (Eq. 5).

    Queries of a sample and of the next one of its class are averaged, compared by cosine with the
    sample's keys, averaged over queries, and softmax over positions gives a. The maps become
    x (1 + HW a) / 2: their mean is that of plain and attended pooling. Two 1x1 convolutions travel
    with the model.
    """

    objectives = frozenset({"classification"})

    def build(self, net: Net) -> None:
        """A neck after the last stage with maps."""
        stage = chosen_stages(net, "last", self.name)[0]
        net.insert(self.name, Highlighter(net.shapes()[stage][0]), after=stage)

    def _pair(self, net: Net, partner: Tensor | None) -> None:
        neck = net.extra[self.name]
        assert isinstance(neck, Highlighter)
        neck.partner = partner

    def batch(self, client: Client, batch: Batch) -> Batch:
        """Partners of this batch."""
        self._pair(client.net, next_of_class(soft_targets(batch.y, client.classes).argmax(1)))
        return batch

    def finish(self, client: Client) -> Tree:
        """Nothing is sent but the net's own entries."""
        self._pair(client.net, None)
        return {}
