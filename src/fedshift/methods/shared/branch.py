"""What a client trains beside the net: a second model (Ditto, APFL, Fed-CO2), a discriminator.

A branch is a tree in the client's state. While the client trains, its parameters are leaves of the
graph, so that a player can move them; between visits they are plain tensors.
"""

from __future__ import annotations

from torch import nn

from fedshift import Client, Named, Net, Tree


def opened(client: Client, entries: Tree) -> Tree:
    """A copy of ``entries`` whose parameters can be trained; buffers are plain copies.

    Entries that the net does not train, because they are fixed, are not trained here either.
    """
    trained = trained_keys(client.net)
    return {k: nn.Parameter(v.clone()) if k in trained else v.clone() for k, v in entries.items()}


def closed(branch: Tree) -> Tree:
    """The same entries as plain tensors."""
    return {k: v.detach() for k, v in branch.items()}


def leaves(branch: Tree) -> Named:
    """Those entries of an opened branch that are trained."""
    return [(k, v) for k, v in branch.items() if isinstance(v, nn.Parameter)]


def trained_keys(net: Net) -> set[str]:
    """Names of the parameters that the net trains."""
    return {k for k, p in net.named_parameters() if p.requires_grad}
