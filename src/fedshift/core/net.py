"""The net that every method trains: stages with taps, necks between them, one head.

Backbones build a :class:`Net`; parts read its outputs, add necks and choose entries by module type;
``engine`` loads it in place. Methods must never select an entry by a substring of its key: a
BatchNorm layer may be called ``downsample.1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.base.errors import ConfigError
from fedshift.base.tree import Tree


@dataclass(slots=True)
class Output:
    """The result of one forward pass."""

    logits: Tensor  # (B, K)
    features: Tensor  # (B, D), input of the head
    taps: dict[str, Tensor] = field(default_factory=dict)  # output of each stage, by name
    aux: dict[str, Tensor] = field(default_factory=dict)  # other outputs of necks, "neck/key"


class Neck(nn.Module):
    """A module that a part inserts after a stage; returns the new maps and any further tensors."""

    def forward(self, maps: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Identity; subclasses return (maps, tensors to appear in ``Output.aux``)."""
        return maps, {}


class Net(nn.Module):
    """Named stages in order, then the head, so that a method need not know the architecture.

    ``stages`` maps a stage's name, which is also its tap's, to the (dotted) names of the modules it
    runs. State-dict keys can so be those of torchvision while the taps have names of ours. The
    output of the last stage, flattened, is ``Output.features``.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        *,
        stages: Mapping[str, Sequence[str]],
        head: str,
        shape: Sequence[int],
        classes: int,
    ) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.extra = nn.ModuleDict()  # modules that parts add, by name
        self.stages = {name: tuple(paths) for name, paths in stages.items()}
        self.head_path = head
        self.shape = tuple(shape)  # of one input
        self.classes = classes
        self.necks: dict[str, list[str]] = {name: [] for name in stages}
        self.skipped: frozenset[str] = frozenset()  # necks that the forward pass leaves out
        self.contiguous = False  # copy images to channels-first before the first stage
        self.frozen: frozenset[str] = frozenset()  # entries that the backbone wants fixed
        self.fixed: tuple[nn.Module, ...] = ()  # modules that never train; see fix()

    @property
    def head_module(self) -> nn.Module:
        """The classifier on top of the features."""
        head: nn.Module = attrgetter(self.head_path)(self)  # get_submodule takes twice the time
        return head

    def insert(self, name: str, neck: Neck, *, after: str) -> None:
        """Let ``neck`` transform the output of stage ``after``, in place; several run in order."""
        if after not in self.stages:
            raise ConfigError(
                f"{name} follows stage {after!r}, but this backbone has {', '.join(self.stages)}"
            )
        if hasattr(nn.ModuleDict, name):
            raise ConfigError(
                f"a neck cannot be called {name!r}, torch uses that name; rename the part"
            )
        self.extra[name] = neck
        self.necks[after].append(name)

    def forward(self, x: Tensor) -> Output:
        """Logits, features and taps of a batch (B, *shape)."""
        taps: dict[str, Tensor] = {}
        aux: dict[str, Tensor] = {}
        x = x.contiguous() if self.contiguous else x
        for stage, paths in self.stages.items():
            for path in paths:
                x = attrgetter(path)(self)(x)
            for name in self.necks[stage]:
                if name in self.skipped:
                    continue
                x, seen = self.extra[name](x)
                aux |= {f"{name}/{key}": value for key, value in seen.items()}
            taps[stage] = x
        features = x.flatten(1)  # (B, D)
        return Output(self.head_module(features), features, taps, aux)

    @torch.no_grad()
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tap, of ``features`` and of ``logits`` for one input; changes nothing."""
        was_training = self.training
        out = self.eval()(torch.zeros(1, *self.shape))
        self.train(was_training)
        named = out.taps | {"features": out.features, "logits": out.logits}
        return {name: tuple(value.shape[1:]) for name, value in named.items()}


class Scope(IntEnum):
    """Where an entry of the net is kept; if two parts disagree, the most private wins."""

    SHARED = 0  # one value for all clients, merged by the aggregator
    PERSONAL = 1  # uploaded, one value per client, mixed by the server
    PRIVATE = 2  # never leaves the client
    FIXED = 3  # never trains and never travels: every machine builds the same value


def fix(net: Net, keys: Set[str]) -> None:
    """Let the entries ``keys`` never train, in place.

    Their parameters get no gradient, and modules all of whose entries are among them stay in eval
    mode: their BatchNorm statistics do not move, and their dropout is off.
    """
    for name, parameter in net.named_parameters():
        if name in keys:
            parameter.requires_grad_(False)
    held = {
        path: [f"{path}.{key}" if path else key for key in module.state_dict()]
        for path, module in net.named_modules()
    }
    whole = {path for path, own in held.items() if own and keys >= set(own)}
    net.fixed = tuple(m for root in whole for m in net.get_submodule(root).modules())


def by_scope(scopes: Mapping[str, Scope]) -> dict[Scope, frozenset[str]]:
    """The names of the entries in each scope."""
    return {s: frozenset(k for k, own in scopes.items() if own is s) for s in Scope}


def keys_of_type(net: nn.Module, *types: type[nn.Module]) -> set[str]:
    """State-dict keys owned by modules of these types, whatever the modules are called."""
    return {
        f"{path}.{key}" if path else key
        for path, module in net.named_modules()
        if isinstance(module, types)
        for key in module.state_dict()
    }


def batch_norm_keys(net: nn.Module) -> set[str]:
    """Keys of the weights, biases and statistics of every BatchNorm."""
    return keys_of_type(net, _BatchNorm)


def head_keys(net: Net) -> set[str]:
    """Keys of every entry of the head."""
    return {f"{net.head_path}.{key}" for key in net.head_module.state_dict()}


def batch_norm_buffers(net: nn.Module) -> set[str]:
    """Keys of the running statistics and counters of every BatchNorm."""
    return batch_norm_keys(net) & {name for name, _ in net.named_buffers()}


def load(net: nn.Module | Tree, *trees: Mapping[str, Tensor]) -> None:
    """Copy entries into a net, or into its ``state_dict()``, in place.

    Later trees overwrite earlier ones; an unknown entry is an error. One fused copy per tree: a
    caller that loads often passes the ``state_dict()``, which it can keep, since the net's memory
    stays where it is.
    """
    target = net.state_dict() if isinstance(net, nn.Module) else net
    with torch.no_grad():
        for entries in trees:
            if entries:
                into = [target[key] for key in entries]
                torch._foreach_copy_(into, list(entries.values()))


def call(net: Net, entries: Mapping[str, Tensor], x: Tensor) -> Output:
    """Forward ``net`` with ``entries`` in place of its own, as Ditto does for its personal model.

    In train mode BatchNorm updates the buffers in ``entries``, not those of ``net``.
    """
    out: Output = functional_call(net, dict(entries), (x,))
    return out


@torch.no_grad()
def call_frozen(net: Net, entries: Tree, x: Tensor) -> Output:
    """As :func:`call`, in eval mode and without gradient; changes neither ``net`` nor ``entries``.

    Eval mode matters: received entries are read-only, and in train mode BatchNorm would write into
    them. Each module's own mode is restored, since modules may differ in it.
    """
    modes = [(m, m.training) for m in net.modules()]
    net.eval()
    try:
        return call(net, entries, x)
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def estimate_statistics(net: Net, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    """Set BatchNorm statistics, in place, to their plain average over ``batches`` of inputs.

    With ``momentum = None`` torch averages cumulatively, so every batch counts the same. Only the
    BatchNorm layers run in train mode, fixed ones excepted; dropout and necks stay in eval mode.
    """
    fixed = set(map(id, net.fixed))
    layers = [m for m in net.modules() if isinstance(m, _BatchNorm) and id(m) not in fixed]
    momenta = [layer.momentum for layer in layers]
    net.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    for x, _ in batches:
        net(x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()


class OncePerBatch:
    """Lets each BatchNorm update its running statistics on the first forward of a batch only.

    Several players, or a part that runs the net again inside its loss, forward the same batch more
    than once; without this its statistics would count as often, and a method with an extra forward
    would differ from FedAvg for that reason alone. A hook before each BatchNorm layer switches
    ``track_running_stats`` off if the layer has already seen this batch: the layer then still
    normalises by the batch's own statistics, but leaves the running ones alone. In eval mode it
    stays on, because there it selects the running statistics.

    What has been seen is recorded by the identity of the ``running_mean`` buffer, not of the layer:
    :func:`call` swaps the buffers of the same modules, and a second model such as Ditto's has
    statistics of its own to update. :func:`~fedshift.core.loop.descend` enters this context for a
    phase and calls :meth:`next_batch` after each batch.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.layers = [
            m for m in modules if isinstance(m, _BatchNorm) if m.running_mean is not None
        ]
        self.moved: set[int] = set()

    def _before(self, layer: nn.Module, _args: object) -> None:
        mark = id(layer._buffers["running_mean"])  # noqa: SLF001  no public way to the raw buffer
        layer.track_running_stats = not layer.training or mark not in self.moved  # type: ignore[assignment]
        if layer.training:
            self.moved.add(mark)

    def next_batch(self) -> None:
        """Let every layer update its statistics again."""
        self.moved.clear()

    def __enter__(self) -> OncePerBatch:
        self.handles = [m.register_forward_pre_hook(self._before) for m in self.layers]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()
        for layer in self.layers:
            layer.track_running_stats = True


def parameters_of(net: nn.Module, keys: Iterable[str]) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) of those parameters of ``net`` that ``keys`` contains."""
    wanted = set(keys)
    return [(name, p) for name, p in net.named_parameters() if name in wanted]
