"""One layer per stage of a net, for measures that compare models layer by layer."""

from __future__ import annotations

from fedshift.core.net import Net, head_keys


def last_weights(net: Net) -> dict[str, str]:
    """The name of the last weight matrix or kernel of each stage, and of the head, in net's order.

    Stages without one (a pooling) are left out; modules that parts added belong to no stage.
    """
    own: dict[str, str] = {}
    for stage, paths in net.stages.items():
        for path in paths:
            names = [n for n, p in net.get_submodule(path).named_parameters() if p.dim() > 1]
            if names:
                own[stage] = f"{path}.{names[-1]}"
    heads = head_keys(net)
    found = [n for n, p in net.named_parameters() if n in heads and p.dim() > 1]
    return own | ({"head": found[-1]} if found else {})
