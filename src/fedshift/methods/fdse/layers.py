"""FDSE's layers: a conv or linear layer becomes extractor and skew eraser (Eqs. 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedshift.methods.fdse.statistics import Statistics, batch_statistics

FORMS = ("ghost", "literal", "ghost-everywhere")


@dataclass(frozen=True)
class LayerForm:
    """How every layer is decomposed."""

    ratio: int = 2  # G
    form: str = "ghost"
    padding: str = "same"
    inner_relu: bool = True


class Scale(nn.Module):
    """f_DSE on vectors: each feature times ``maps`` weights, as a grouped 1x1 conv would do."""

    def __init__(self, features: int, maps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, maps).uniform_(-1, 1))  # fan-in is 1

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) to (B, D * maps), the maps of one feature side by side."""
        return (x.unsqueeze(2) * self.weight).flatten(1)


class Decomposed(nn.Module):
    """Eqs. 2 and 3 up to BN_DFE: ``bias + f_DSE(ReLU(BN_DSE(f_DFE(x))))``, T channels of G T_DFE.

    f_DFE is f with ``ceil(T / G)`` outputs, and starts as the first of f's filters. f_DSE is a
    grouped conv 3x3 (a scale per feature for vectors). The ghost form concatenates f_DSE's input
    and its G - 1 maps, the literal form takes G maps of f_DSE. BN_DFE is the backbone's BatchNorm
    where one follows, else it is ``bn_dfe`` here; the ReLU after it is always the backbone's.
    """

    def __init__(self, f: nn.Conv2d | nn.Linear, layer_form: LayerForm, *, own_norm: bool) -> None:
        super().__init__()
        conv = isinstance(f, nn.Conv2d)
        self.identity = layer_form.form == "ghost-everywhere" or (
            layer_form.form == "ghost" and conv
        )
        self.inner_relu = layer_form.inner_relu
        self.channels = f.out_channels if isinstance(f, nn.Conv2d) else f.out_features  # T
        inner, maps = ceil(self.channels / layer_form.ratio), layer_form.ratio - self.identity
        norm = nn.BatchNorm2d if conv else nn.BatchNorm1d
        self.dfe = extractor(f, inner, layer_form.padding)
        self.bn_dse = norm(inner)
        self.dse: nn.Module = (
            nn.Conv2d(inner, inner * maps, 3, padding=1, groups=inner, bias=False)
            if conv
            else Scale(inner, maps)
        )
        self.bias = nn.Parameter(torch.zeros(self.channels))
        self.bn_dfe = norm(self.channels) if own_norm else nn.Identity()
        self.norm_path = ""  # of BN_DFE in the net
        self.watched = False  # whether to record the statistics of BN_DFE's input
        self.seen: Statistics | None = None
        self.count = 0  # numbers per channel that they are of

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, S, H, W) to (B, T, h, w), or vectors (B, S) to (B, T)."""
        a = self.bn_dse(self.dfe(x))  # (B, T_DFE, ...)
        a = F.relu(a, inplace=True) if self.inner_relu else a
        out = self.dse(a)
        out = torch.cat([a, out], 1) if self.identity else out
        out = out[:, : self.channels] if out.shape[1] > self.channels else out
        out = out.add_(self.bias.view(-1, *(1,) * (out.dim() - 2)))  # (B, T, ...)
        if self.watched and torch.is_grad_enabled():
            self.seen, self.count = batch_statistics(out), out.numel() // out.shape[1]
        normalised: Tensor = self.bn_dfe(out)
        return normalised

    def erasers(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The personal parameters: f_DSE, the affine map of BN_DSE, the additive bias."""
        for name, module in (("dse", self.dse), ("bn_dse", self.bn_dse)):
            yield from module.named_parameters(name)
        yield "bias", self.bias


def extractor(f: nn.Conv2d | nn.Linear, outputs: int, padding: str) -> nn.Module:
    """f_DFE: f with fewer outputs and the first of its weights; ``half`` pads by k // 2."""
    if isinstance(f, nn.Linear):
        dfe: nn.Module = nn.Linear(f.in_features, outputs, bias=f.bias is not None)
    else:
        half = tuple(k // 2 for k in f.kernel_size)
        dfe = nn.Conv2d(
            f.in_channels,
            outputs,
            f.kernel_size,  # type: ignore[arg-type]
            f.stride,  # type: ignore[arg-type]
            half if padding == "half" else f.padding,  # type: ignore[arg-type]
            f.dilation,  # type: ignore[arg-type]
            bias=f.bias is not None,
            padding_mode=f.padding_mode,
        )
    with torch.no_grad():
        for mine, theirs in zip(dfe.parameters(), f.parameters(), strict=True):
            mine.copy_(theirs[:outputs])
    return dfe
