"""What is read of a decomposed net: its targets, its erasers, statistics of a pass."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedshift import (
    Batch,
    Named,
    Net,
    Output,
    Tree,
)
from fedshift.methods.fdse.decompose import MEAN, VARIANCE, decomposed


def trained(net: Net, entries: Mapping[str, Tensor]) -> bool:
    """Whether a batch has moved the statistics of BN_DFE; one synchronisation."""
    first = decomposed(net)[0][1]
    return bool(entries[f"{first.norm_path}.num_batches_tracked"])


def targets(net: Net, entries: Mapping[str, Tensor]) -> Tree:
    """mu_g and var_g of every layer."""
    out: Tree = {}
    for l, (_, layer) in enumerate(decomposed(net)):  # noqa: E741
        out[f"{MEAN}/{l}"] = entries[f"{layer.norm_path}.running_mean"]
        out[f"{VARIANCE}/{l}"] = entries[f"{layer.norm_path}.running_var"]
    return out


def watch(net: Net, on: bool) -> None:
    """Switch the recording of every layer's output statistics on or off, in place."""
    for _, layer in decomposed(net):
        layer.watched = on


def erasers(net: Net) -> Named:
    """Every layer's eraser, by name in the net."""
    return [(f"{p}.{key}", w) for p, layer in decomposed(net) for key, w in layer.erasers()]


def erase(net: Net, batch: Batch) -> Output:
    """Forward pass in eval mode, except that BN_DSE uses and updates batch statistics."""
    net.eval()
    for _, layer in decomposed(net):
        layer.bn_dse.train()
    out: Output = net(batch.x)
    return out
