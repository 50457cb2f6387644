"""What a combining rule costs over 100 clients of ResNet-10, against the plain mean.

Interleaved repetitions; median and quartiles of the ratio, by the clock and in processor time. The
mean is one thread's work, as where replies are summed while the workers train; the others want all
replies, begin when the workers are done, and take all cores. FDSE's clients train the
decomposed net, and its aggregation is consensus and mixing together; the mean is that of the whole
ResNet-10, and once more that of the decomposed one.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from types import SimpleNamespace

import torch
from common import Program, header, interleave, ratios

from fedshift.base.process import one_thread, tune_process
from fedshift.base.tree import Tree
from fedshift.core.aggregate import Mean
from fedshift.core.message import Update
from fedshift.core.net import Scope
from fedshift.core.registry import BACKBONES, build
from fedshift.core.reply_stack import ReplyStack

CLIENTS = 100


def cohort(method: str, clients: int) -> tuple[SimpleNamespace, list[Update]]:
    """As much of a server as a rule reads; what clients sent: a common move and their own."""
    whole = build(method)
    net = BACKBONES.get("resnet10").build((3, 32, 32), 7)
    for part in whole.parts:
        part.build(net)
    scopes, initial = whole.scopes(net), {k: v.clone() for k, v in net.state_dict().items()}
    shared = {k: v for k, v in initial.items() if scopes[k] is Scope.SHARED}
    own = {k: v for k, v in initial.items() if scopes[k] is Scope.PERSONAL}
    g = torch.Generator().manual_seed(0)
    common = {k: torch.randn(v.shape, generator=g) for k, v in initial.items()}

    def move(entries: Tree) -> Tree:
        return {
            k: v + 0.01 * (torch.randn(v.shape, generator=g) + common[k])
            if v.is_floating_point()
            else v.clone()
            for k, v in entries.items()
        }

    stack = ReplyStack(clients)  # where a round's replies lie
    updates = [
        stack.keep(Update(f"c{i}", "train", 1, move(shared), move(own), examples=10))
        for i in range(clients)
    ]
    server = SimpleNamespace(
        shared=shared,
        initial=initial,
        parameters=frozenset(k for k, _ in net.named_parameters()) & shared.keys(),
        scenario=SimpleNamespace(weights="examples", bn="average"),
        keys=lambda scope: {k for k, s in scopes.items() if s is scope},
        method=whole,
    )
    return server, updates


def fdse(server: SimpleNamespace, updates: list[Update]) -> None:
    """Consensus of the shared entries, mixing of the personal ones."""
    server.method.aggregate(server, updates)
    server.method.personal(server, updates)


def main(clients: int) -> None:
    """Print the ratios."""
    print(header())
    tune_process()
    with one_thread():
        plain = cohort("fedavg", clients)
        decomposed = cohort("fdse", clients)
        programs: dict[str, Program] = {
            "mean": partial(Mean(), *plain),
            "csac": partial(build("csac").aggregate, *plain),
            "fdse": partial(fdse, *decomposed),
            "mean, decomposed": partial(Mean(), *decomposed),
        }
        for what, clock in (("clock", time.perf_counter), ("processor", time.process_time)):
            times = interleave(programs, 15, clock)
            for name, (middle, low, high) in ratios(times, "mean").items():
                print(f"{what:<10} {name:<18} {middle:5.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS)
