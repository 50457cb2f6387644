"""How the server moves from its parameters to the combined ones. Buffers never come here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedshift.declare import Declares, setting
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.server import Server


class ServerOptimiser(Declares):
    """Next shared parameters from the current and the combined ones."""

    def __call__(self, server: Server, combined: Tree) -> Tree:
        """``combined`` holds parameters only; state lives in ``server.state[self.name]``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Add(ServerOptimiser):
    """theta + lr * (combined - theta); at lr = 1 the combined parameters themselves."""

    lr: float = setting(1.0, "server learning rate", low=0.0)

    def __call__(self, server: Server, combined: Tree) -> Tree:  # noqa: D102
        if self.lr == 1.0:
            return combined
        return {k: server.shared[k].lerp(v, self.lr) for k, v in combined.items()}
