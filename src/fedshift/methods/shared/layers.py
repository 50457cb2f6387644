"""The layers of a net in the order of its forward pass: what FedALA and PartialFed choose from."""

from __future__ import annotations

from fedshift import Net


def layers(net: Net) -> dict[str, list[str]]:
    """Entries of each module that has some of its own, by the module's path, inputs first.

    A BatchNorm is a layer of its own. Necks follow the stage after which they are inserted, and the
    head is last, wherever they are registered.
    """
    found: dict[str, list[str]] = {}
    for key in net.state_dict():
        found.setdefault(key.rpartition(".")[0], []).append(key)
    roots = [
        root
        for stage, paths in net.stages.items()
        for root in (*paths, *(f"extra.{neck}" for neck in net.necks[stage]))
    ]
    place = {root: i for i, root in enumerate(roots)} | {net.head_path: len(roots) + 1}

    def order(path: str) -> int:
        parents = [path, *(path[:i] for i, c in enumerate(path) if c == ".")]
        return max((place[p] for p in parents if p in place), default=len(roots) if path else -1)

    return {path: found[path] for path in sorted(found, key=order)}  # stable: as registered
