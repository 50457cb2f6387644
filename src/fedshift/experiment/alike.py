"""Whose data new inputs look most like, by BatchNorm statistics that sites keep as their own.

``experiment.models`` calls it for predictions. Some methods let each site keep the mean and the
variance of its activations (FedBN, FDSE, ``bn=local``), and a simulated run has them in its
directory. Nothing else of a site's data is known or used, so other runs have no answer; nothing
here may need data of a site.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.base.tree import Tree
from fedshift.core.net import Net, call_frozen

BATCH = 512  # inputs at a time
PROBE = 8  # inputs on which the layer's input must be the same for all sites


def most_alike(
    net: Net, own: Mapping[str, Tree], private: Collection[str], x: Tensor
) -> list[str] | None:
    """For each input (N, *shape) the site whose statistics fit it best; None if none are kept.

    ``own`` are the entries with which each site predicts, ``private`` names those that it keeps.
    The statistics are those of the first BatchNorm layer whose statistics are private. What comes
    before it must be the same at every site, or their activations could not be compared.
    """
    layers = {
        path: module
        for path, module in net.named_modules()
        if isinstance(module, _BatchNorm) and f"{path}.running_mean" in private
    }
    if not layers or len(own) < 2 or not len(x):
        return None
    first = [_inputs(net, layers, entries, x[:PROBE]) for entries in own.values()]
    layer, seen = first[0]
    if not all(name == layer and torch.equal(seen, other) for name, other in first):
        return None
    keys = f"{layer}.running_mean", f"{layer}.running_var"
    means, variances = (torch.stack([entries[key] for entries in own.values()]) for key in keys)
    entries = next(iter(own.values()))
    maps = [_inputs(net, {layer: layers[layer]}, entries, part)[1] for part in x.split(BATCH)]
    found = misfit(torch.cat([spread(one) for one in maps]), means, variances)  # (N, S)
    sites = list(own)
    return [sites[i] for i in found.argmin(1).tolist()]


def spread(maps: Tensor) -> Tensor:
    """Mean and variance of each channel of each input, (N, 2, C), from (N, C, ...)."""
    flat = maps.double().flatten(2) if maps.dim() > 2 else maps.double()[:, :, None]
    return torch.stack([flat.mean(2), flat.var(2, correction=0)], 1)


def misfit(seen: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Mean over channels of the expected -log N(activation; site's mean, variance), (N, S).

    ``seen`` (N, 2, C) is :func:`spread`; means and variances are (S, C). Constants are left out:
    (log v + (s2 + (m - mu)^2) / v) / 2.
    """
    m, s2 = seen[:, None, 0], seen[:, None, 1]  # (N, 1, C)
    v = variances.double().clamp(min=1e-12)
    return ((v.log() + (s2 + (m - means.double()).square()) / v) / 2).mean(2)


def _inputs(
    net: Net, layers: Mapping[str, nn.Module], entries: Tree, x: Tensor
) -> tuple[str, Tensor]:
    """The first of some layers that a forward pass reaches, and what it gets, under ``entries``."""
    seen: list[tuple[str, Tensor]] = []

    def watch(path: str) -> Any:
        return lambda _module, args: seen.append((path, args[0].detach()))

    hooks = [module.register_forward_pre_hook(watch(path)) for path, module in layers.items()]
    try:
        call_frozen(net, entries, x)
    finally:
        for hook in hooks:
            hook.remove()
    return seen[0]
