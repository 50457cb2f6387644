"""Which layers of a net are decomposed, and the change of the net itself.

One forward pass shows which layers run and which BatchNorm reads their output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from fedshift import ConfigError, Net, Output
from fedshift.methods.fdse.layers import Decomposed, LayerForm

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001
MEAN, VARIANCE = "erased/mean", "erased/variance"  # in ``Output.aux``, "{key}/{depth}"
COUNT = "erased/count"  # of how many numbers, in the same form


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
