"""A compact convolutional transformer, CCT-7/3x1 (Hassani et al., 2021), as in FedDebias."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import Net, register_backbone
from fedshift.backbones.layers import choice, image, probability, scaled

DEPTH, HEADS = 7, 4


class Positions(nn.Module):
    """Flattens maps into tokens and adds a learned vector for each position."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, width), std=0.2))

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, D, H, W) to tokens (B, HW, D)."""
        return maps.flatten(2).transpose(1, 2) + self.weight


class Attention(nn.Module):
    """Multi-head self-attention with dropout on the attention weights."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to tokens (B, N, D)."""
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # (B, h, N, D/h)
        weights = F.softmax(q @ k.transpose(2, 3) / q.shape[3] ** 0.5, dim=3)  # (B, h, N, N)
        mixed = self.dropout(weights) @ v  # (B, h, N, D/h)
        return self.out(mixed.transpose(1, 2).flatten(2))


class DropPath(nn.Module):
    """Stochastic depth: in training, drops a branch for random images and rescales the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """Branch (B, N, D) to (B, N, D)."""
        if not self.training or self.rate == 0.0:
            return branch
        kept = branch.new_empty(len(branch), 1, 1).bernoulli_(1 - self.rate)
        return branch * kept / (1 - self.rate)


class Encoder(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), or norm(x) + mlp(norm(x)) if ``normed``."""

    def __init__(self, width: int, *, dropout: float, drop_path: float, residual: str) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.drop_path = DropPath(drop_path)
        self.normed = residual == "normed"

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to tokens (B, N, D)."""
        x = x + self.drop_path(self.attention(self.norm1(x)))
        inner = self.norm2(x)
        return (inner if self.normed else x) + self.drop_path(self.mlp(inner))


class SequencePool(nn.Module):
    """The mean of the tokens, weighted by a learned attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.score = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to features (B, D)."""
        x = self.norm(x)
        weights = F.softmax(self.score(x), dim=1)  # (B, N, 1)
        return (weights.transpose(1, 2) @ x).squeeze(1)


def _initialise(net: nn.Module) -> None:
    """Initialise the weights as the authors do, in place."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)


@register_backbone("cct-7-3x1", paper="Hassani et al., 2021")
def cct_7_3x1(
    shape: Sequence[int],
    classes: int,
    *,
    width: float = 1.0,
    dropout: float = 0.1,
    drop_path: float = 0.1,
    residual: str = "plain",
) -> Net:
    """CCT-7/3x1: conv 3x3 tokens of 256, seven encoder blocks of 4 heads, sequence pooling.

    ``dropout`` is that of the attention; ``drop_path`` grows linearly from 0 to its value. The
    authors' code lets the second half of a block continue from the normalised tokens, which is
    ``residual=normed``; ours is the pre-norm block of the paper. FedDebias's code keeps CCT's own
    classifier of 100 classes in addition to its own; here the head is the only one.
    """
    channels, height, breadth = image("cct-7-3x1", shape, least=4)
    wide = HEADS * scaled(256 // HEADS, width)
    tokens = ((height + 1) // 2) * ((breadth + 1) // 2)
    rate, last = probability("dropout", dropout), probability("drop_path", drop_path)
    choice("residual", residual, ("plain", "normed"))
    modules: dict[str, nn.Module] = {
        "tokens": nn.Sequential(
            nn.Conv2d(channels, wide, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            Positions(tokens, wide),
        )
    }
    for i in range(DEPTH):
        drop = last * i / (DEPTH - 1)
        modules[f"block{i + 1}"] = Encoder(wide, dropout=rate, drop_path=drop, residual=residual)
    modules["pool"] = SequencePool(wide)
    stages = {name: (name,) for name in modules}
    modules["head"] = nn.Linear(wide, classes)
    net = Net(modules, stages=stages, head="head", shape=shape, classes=classes)
    _initialise(net)
    return net
