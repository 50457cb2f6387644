"""A pool of what clients send about their data: kept by client, handed to the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from fedshift import ConfigError, Part, Server, Tree, Update, tree


def require_part(part: Part, needed: type[Part], server: Server) -> None:
    """Raise if no part of the method is of the kind that ``part`` takes its data from."""
    if not any(isinstance(p, needed) for p in server.method.parts):
        name = needed().name
        raise ConfigError(f"{part.name} uses what {name} gathers, and no part does; add + {name}")


def kept_by_client(part: str, updates: Iterable[Update]) -> Tree:
    """Each client's payload for ``part``, as ``key/client``, for the server's state."""
    return {
        f"{key}/{u.client}": value
        for u in updates
        for key, value in tree.under(part, u.payload).items()
    }


def of_others(kept: Tree, keys: Sequence[str], client: str) -> Tree:
    """What the other clients have sent, joined along the first dimension in the order of names.

    ``owner`` (n,) counts the clients of the rows from 0. A client that is alone gets its own.
    """
    held = sorted(k.partition("/")[2] for k in kept if k.startswith(f"{keys[0]}/"))
    others = [name for name in held if name != client] or held
    if not others:
        return {}
    joined = {key: torch.cat([kept[f"{key}/{name}"] for name in others]) for key in keys}
    sizes = torch.tensor([len(kept[f"{keys[0]}/{name}"]) for name in others])
    return joined | {"owner": torch.arange(len(others)).repeat_interleave(sizes)}
