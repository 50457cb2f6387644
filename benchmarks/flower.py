"""What Flower adds to a round: its apps on a grid in memory, and its simulation on Ray.

The same ResNet-10 visit (32 px, batch 64, 10 local steps) through each transport,
interleaved; median and quartiles of the ratio to the in-process transport. The first two compare on
the processor's seconds of one thread, which other programs on the machine do not change; Ray works
in processes of its own and is compared by the clock.

    python benchmarks/flower.py
    python benchmarks/flower.py --ray --repeats 5
"""

from __future__ import annotations

import argparse
import time

from common import Program, Work, header, interleave, ratios, rounds, scenario

from fedshift.base.process import one_thread, tune_process
from fedshift.core.config import configure
from fedshift.core.server import Transport
from fedshift.engine.build import Plan
from fedshift.experiment.session import Options, Session, prepare
from fedshift.transports.flower import grid

WORK = Work("flower", "resnet10", (3, 32, 32), 7, 1, 10, 64)


def in_memory(plan: Plan) -> Transport:
    """The real ClientApp in this process, on one resident worker."""
    site = plan.worker()
    app = grid.client_app(lambda run, node: site)  # noqa: ARG005  one run, all sites
    nodes = [{"client": client} for client in plan.federation.sites]
    return grid.connected(grid.InMemoryGrid(app, nodes))(plan)


def opened(method: str, options: Options) -> Session:
    """A run before round 1."""
    config, whole = configure(method, scenario(WORK))
    return prepare(config, whole, None, options)


def show(programs: dict[str, Program], repeats: int, clock: object) -> None:
    """Seconds per round and the ratio to the in-process transport."""
    times = interleave(programs, repeats, clock)
    for name, (middle, low, high) in ratios(times, "inprocess").items():
        seconds = sorted(times[name])[len(times[name]) // 2]
        print(f"  {name:<12} {seconds:6.2f} s   {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


def main() -> None:
    """Both comparisons, or the first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--ray", action="store_true", help="Ray too; takes half a minute to start")
    given = parser.parse_args()
    print(header())
    tune_process()
    with one_thread():
        here = opened(given.method, Options())
        programs = {
            "inprocess": rounds(here),
            "flower": rounds(opened(given.method, Options(transport=in_memory))),
        }
        print(f"{given.method}, one client of {WORK.steps} steps, processor's seconds")
        show(programs, given.repeats, time.process_time)
        if given.ray:
            ray = opened(given.method, Options(transport="flower", workers=1))
            print("by the clock, one actor")
            show({"inprocess": rounds(here), "ray": rounds(ray)}, given.repeats, time.perf_counter)
            ray.transport.close()


if __name__ == "__main__":
    main()
