"""FedAvg's local work in fedshift against a bare PyTorch loop on the same net, data and steps.

Prints ratios (lower is faster), median and quartiles of interleaved rounds: the machine may be
noisy, the ratio is not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from fedshift.backbones.cnn import cnn
from fedshift.experiment import find_scenario, prepare
from fedshift.machine import one_thread
from fedshift.runs.config import configure
from fedshift.server import play_round

REPEATS = 15


def ours() -> Callable[[], None]:
    """One federated round: eight visits and the aggregation."""
    config, method = configure("fedavg", find_scenario("digits"))
    session = prepare(config, method)
    return lambda: play_round(session.server, session.transport, session.record) and None


def bare(*, channels_last: bool) -> Callable[[], None]:
    """The same number of steps on inputs that are ready: no messages, no state, no aggregation."""
    place = find_scenario("digits")
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = cnn((3, 32, 32), 10).to(memory_format=layout)
    optimiser = torch.optim.SGD(net.parameters(), place.lr)
    sizes = [16, 16, 8] * 2 * 8  # 40 samples in batches of 16, two epochs, eight clients
    batches = [
        (
            torch.randn(n, 3, 32, 32).contiguous(memory_format=layout),
            torch.randint(0, 10, (n,)),
        )
        for n in sizes
    ]

    def play() -> None:
        for x, y in batches:
            optimiser.zero_grad()
            F.cross_entropy(net(x).logits, y).backward()
            optimiser.step()

    return play


def main() -> None:
    """Interleave the programs, print each one's time as a ratio to the bare NCHW loop."""
    programs = {
        "bare loop, NCHW": bare(channels_last=False),
        "bare loop, channels-last": bare(channels_last=True),
        "fedshift, in process": ours(),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    with one_thread():
        for repeat in range(REPEATS + 2):
            for name, play in programs.items():
                began = time.perf_counter()
                play()
                if repeat >= 2:
                    times[name].append(time.perf_counter() - began)
    base = times["bare loop, NCHW"]
    for name, values in times.items():
        ratios = [v / b for v, b in zip(values, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:<26} {middle:5.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
