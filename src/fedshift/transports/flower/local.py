"""Flower's simulation on this machine: Ray actors run the visits of all sites.

The transport ``flower`` of ``Options(transport=...)``, to see a method run through Flower; the pool
gives the same numbers much sooner. The data sets are in shared memory, as for the pool: an actor
must never load or receive them by itself. Flower is imported only when :class:`Local` is made.
"""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from fedshift.base.extras import require, require_flower
from fedshift.base.process import tune_process
from fedshift.core.config import RunConfig
from fedshift.core.state import DiskStore, MemoryStore
from fedshift.engine.build import Plan
from fedshift.engine.visit import Worker
from fedshift.transports.flower.site import NodeConfig
from fedshift.transports.flower.transport import FlowerTransport
from fedshift.transports.pool import Start, open_plan, start_of
from fedshift.transports.shared_memory import Reader, Writer

_resident: dict[str, Worker] = {}  # in an actor: the worker of its current run, by token


@dataclass(frozen=True)
class Opener:
    """Opens a worker around data in shared memory, once per actor and run.

    It is pickled to the actors. ``token`` is unique per run: an actor that outlives a run drops the
    worker of the last one.
    """

    token: str
    start: Start

    def __call__(self, run: RunConfig, node: NodeConfig) -> Worker:  # noqa: ARG002  known from the start
        """See :data:`~fedshift.transports.flower.site.OpenWorker`."""
        if self.token not in _resident:
            tune_process(worker=True)  # allowed: the actor's process runs nothing else
            _resident.clear()
            _resident[self.token] = open_plan(self.start, Reader()).worker()
        return _resident[self.token]


@dataclass(frozen=True)
class Numbered:
    """The client of each simulated node, which has no other name than Flower's partition number."""

    clients: tuple[str, ...]

    def __call__(self, run: RunConfig, node: NodeConfig) -> str:  # noqa: ARG002  known from the start
        """See :data:`~fedshift.transports.flower.site.WhoAmI`."""
        return self.clients[int(node["partition-id"])]


class Local(FlowerTransport):
    """Flower's simulation with ``plan.workers`` actors, on the loopback interface only."""

    def __init__(self, plan: Plan) -> None:
        require_flower("transport flower needs Flower")
        require("ray", "transport flower needs Ray", '"fedshift[flower]"')
        from fedshift.transports.flower import grid  # noqa: PLC0415  the extra

        self._folder = tempfile.TemporaryDirectory(prefix="fedshift-")
        kept = Path(self._folder.name)
        store = DiskStore(kept) if isinstance(plan.store, MemoryStore) else plan.store
        self._data = Writer()
        clients = tuple(plan.federation.sites)
        opener = Opener(uuid.uuid4().hex, start_of(plan, store, self._data))
        app = grid.client_app(opener, Numbered(clients))
        self._simulation = grid.Simulation(app, len(clients), plan.workers)
        opened = grid.FlowerGrid(self._simulation.grid)
        super().__init__(opened, plan.config, store=store, policy=plan.policy)

    def close(self) -> None:
        """End Flower and Ray, and release the data."""
        self._simulation.close()
        self._data.close()
        self._folder.cleanup()
