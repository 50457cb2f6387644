"""FDSE's layers: a conv or linear layer becomes extractor and skew eraser (Eqs. 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from fedshift import ConfigError, Net, Output

Statistics = tuple[Tensor, Tensor]  # mean and biased variance, (C,) each
NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001
FORMS = ("ghost", "literal", "ghost-everywhere")
MEAN, VARIANCE = "erased/mean", "erased/variance"  # in ``Output.aux``, "{key}/{depth}"
COUNT = "erased/count"  # of how many numbers, in the same form


@dataclass(frozen=True)
class LayerForm:
    """How every layer is decomposed."""

    ratio: int = 2  # G
    form: str = "ghost"
    padding: str = "same"
    inner_relu: bool = True


class BatchStatistics(torch.autograd.Function):
    """Eq. 4 and its gradient, one pass each; takes a third of the time of ``torch.var_mean``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Statistics:
        """Mean and 1/n variance (C,) of (B, C, ...)."""
        rows = x.movedim(1, -1).flatten(0, -2)  # (n, C), a view of channels-last maps
        mean = rows.mean(0)
        ctx.save_for_backward(x, mean)
        ctx.n = len(rows)
        return mean, (rows - mean).square_().mean(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Gradient 1 / n of the mean and 2 (x - mean) / n of the variance."""
        x, mean = ctx.saved_tensors
        shape = (-1, *(1,) * (x.dim() - 2))
        slope = gradients[1] * (2 / ctx.n)
        offset = gradients[0] / ctx.n - slope * mean
        return torch.addcmul(offset.view(shape), x, slope.view(shape))


def batch_statistics(x: Tensor) -> Statistics:
    """Eq. 4: mean and 1/n variance (C,) of (B, C, ...) over the batch and every position."""
    found: Statistics = BatchStatistics.apply(x)
    return found


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


@dataclass
class Traced:
    """A layer that can be decomposed, and the BatchNorm that follows it."""

    path: str
    norm: str | None  # path of the BatchNorm that reads its output


class Tracer:
    """Observes one forward pass: which layers run, and which BatchNorm reads their output."""

    def __init__(self) -> None:
        self.found: dict[str, Traced] = {}
        self.made: dict[int, tuple[Tensor, int, str]] = {}  # output, version, layer

    def watch(self, path: str, module: nn.Module) -> RemovableHandle:
        """Hook a module that :func:`body` yields."""
        if isinstance(module, nn.Conv2d | nn.Linear):
            return module.register_forward_hook(partial(self._layer, path))
        return module.register_forward_pre_hook(partial(self._norm, path))

    def _layer(self, path: str, layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if isinstance(layer, nn.Linear) and inputs[0].dim() != 2:
            raise refusal(path, layer, f"on inputs of {inputs[0].dim()} axes")
        self.found.setdefault(path, Traced(path, None))
        self.made[id(out)] = out, out._version, path  # noqa: SLF001  an in-place ReLU keeps the id

    def _norm(self, path: str, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
            return
        _, version, source = self.made.get(id(inputs[0]), (None, 0, ""))
        if source and version == inputs[0]._version:  # noqa: SLF001
            self.found[source].norm = path


@torch.no_grad()
def trace(net: Net, left: Sequence[str]) -> list[Traced]:
    """Conv and linear layers of the body in forward order, each with the BatchNorm that follows it.

    Any other module with weights is an error, unless it lies below a path in ``left``.
    """
    tracer = Tracer()
    handles = [tracer.watch(path, module) for path, module in body(net, left)]
    try:
        net.shapes()
    finally:
        for handle in handles:
            handle.remove()
    return list(tracer.found.values())


def body(net: Net, left: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """Modules with weights, except the head, modules that parts added, and those in ``left``."""
    outside = (net.head_path, "extra", *left)
    for path, module in net.named_modules():
        if any(path == top or path.startswith(f"{top}.") for top in outside):
            continue
        if next(module.parameters(recurse=False), None) is None:
            continue
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            raise refusal(path, module, f"of {module.groups} groups")
        if not isinstance(module, (nn.Conv2d, nn.Linear, *NORMS)):
            raise refusal(path, module)
        yield path, module


def refusal(path: str, module: nn.Module, how: str = "") -> ConfigError:
    """The error for a module that cannot be decomposed: found, expected, what to do."""
    found = f"{path} is a {type(module).__name__} {how}".rstrip()
    return ConfigError(
        f"decompose-layers takes Conv2d of one group and Linear on vectors, but {found}; give a "
        f"backbone such as alexnet-bn, resnet10 or cnn, or keep it whole with leave={path!r}"
    )


def decompose(net: Net, layer_form: LayerForm, leave: str = "") -> None:
    """Decompose every conv and linear layer but the head, in place; raise on any other kind."""
    left = leave.split()
    for path in left:
        if path not in dict(net.named_modules()):
            raise ConfigError(
                f"leave names {path!r}, which this backbone does not have; its modules are "
                f"{', '.join(name for name, _ in net.named_children() if name != 'extra')}"
            )
    layers = trace(net, left)
    if not layers:
        raise ConfigError(
            "decompose-layers finds no conv or linear layer before the head; give a deeper "
            "backbone such as cnn, or shorten leave"
        )
    for found in layers:
        layer = Decomposed(
            net.get_submodule(found.path),  # type: ignore[arg-type]
            layer_form,
            own_norm=found.norm is None,
        )
        layer.norm_path = found.norm or f"{found.path}.bn_dfe"
        parent, _, name = found.path.rpartition(".")
        net.get_submodule(parent).register_module(name, layer)
    net.erased = [found.path for found in layers]  # type: ignore[assignment]
    net.register_forward_hook(note)


def decomposed(net: Net) -> list[tuple[str, Decomposed]]:
    """Path and layer, l = 1..L in the order of the forward pass."""
    paths: Sequence[str] = getattr(net, "erased", ())
    return [(path, net.get_submodule(path)) for path in paths]  # type: ignore[misc]


def note(net: nn.Module, _args: object, out: Output) -> None:
    """Forward hook: move the recorded statistics of this pass to ``out.aux``, once."""
    for l, (_, layer) in enumerate(decomposed(net)):  # type: ignore[arg-type]  # noqa: E741
        if layer.seen is not None:
            out.aux[f"{MEAN}/{l}"], out.aux[f"{VARIANCE}/{l}"] = layer.seen
            out.aux[f"{COUNT}/{l}"] = torch.tensor(layer.count)
            layer.seen = None
