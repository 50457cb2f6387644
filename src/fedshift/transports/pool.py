"""Visits in worker processes of one thread each; tensors pass through shared memory.

Replies come back as they finish; the server puts them in order. Each worker rebuilds its sites from
the configuration around data that lie in shared memory, so nothing large is pickled, and a visit
gives the same bits wherever it is played.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedshift.base.errors import FedshiftError, RunError
from fedshift.base.process import tune_process
from fedshift.base.tree import Tree
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Lost, Message, Update
from fedshift.core.method import Method
from fedshift.core.state import DiskStore, MemoryStore, StateStore
from fedshift.data.library import loaded
from fedshift.data.samples import Domain
from fedshift.engine import federation
from fedshift.engine.build import Plan
from fedshift.engine.compute import Compute
from fedshift.engine.spawn import end_if_repeated, needs_script, why_ended, without_script
from fedshift.transports.shared_memory import Reader, TensorLocation, Writer

QUEUED = 2  # messages that a worker may hold, so that it never waits for the server
SectionLocations = list[dict[str, TensorLocation]]  # where each entry lies, by section


@dataclass(frozen=True)
class Start:
    """What a worker process is given once."""

    config: RunConfig
    method: Method
    store: StateStore
    data: dict[str, tuple[dict[str, TensorLocation], tuple[str, ...]]]  # domain -> tensors, classes
    options: str
    compute: Compute


@dataclass
class WorkerProcess:
    """The server's end of one worker process."""

    process: Any
    connection: Connection
    pipe: TensorPipe
    writers: list[Writer]
    clients: deque[str]  # whose mail it holds
    needs_script: bool  # whether it has run the caller's script
    sent: int = 0


class Pool:
    """As many processes as ``plan.workers``; each visits one site at a time."""

    reply_lifetime = (
        2  # a worker has a block for each message it may hold, and for two replies more
    )
    checks_finite = True

    def __init__(self, plan: Plan) -> None:
        end_if_repeated()
        self._folder = tempfile.TemporaryDirectory(prefix="fedshift-")
        kept = Path(self._folder.name)
        self.store = DiskStore(kept) if isinstance(plan.store, MemoryStore) else plan.store
        self._common, self._data, self._reader = Writer(), Writer(), Reader()
        self._workers: list[WorkerProcess] = []
        self._lenient = plan.policy.lenient
        start = start_of(plan, self.store, self._data)
        context, needed = _context(), needs_script(start)
        for _ in range(plan.workers):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, start), daemon=True)
            with without_script(unless=needed):
                process.start()
            there.close()
            writers = [Writer() for _ in range(QUEUED)]
            pipe = TensorPipe(here, self._reader)
            self._workers.append(WorkerProcess(process, here, pipe, writers, deque(), needed))
        for worker in self._workers:
            self._receive(worker)

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Replies as they arrive, each before the worker's next one is overwritten."""
        waiting = deque(messages)
        common = self._write_common(messages)
        queued = QUEUED if len(messages) >= 2 * QUEUED * len(self._workers) else 1
        for _ in range(queued):
            for worker in self._workers:
                self._send(worker, waiting, common)
        failed: dict[str, FedshiftError] = {}
        while busy := [worker for worker in self._workers if worker.clients]:
            ready = wait([worker.connection for worker in busy])
            for worker in [d for d in busy if d.connection in ready]:
                client = worker.clients[0]
                answer = self._answer(worker, messages[0])
                if isinstance(answer, FedshiftError):
                    failed[client] = answer
                    worker.clients.clear()
                    waiting.clear()
                    continue
                self._send(worker, waiting, common)
                yield answer
        for message in messages:  # the first in the order of the mail, as in process
            if message.client in failed:
                raise failed[message.client]

    def _answer(self, worker: WorkerProcess, task: Broadcast) -> Update | Lost | FedshiftError:
        """What a worker has sent; a visit that failed is a loss if the run may outlive it."""
        client = worker.clients[0]
        try:
            scalars, sections = self._receive(worker)
        except FedshiftError as error:
            if not self._lenient or not worker.process.is_alive():
                return error
            worker.clients.popleft()
            return Lost(client, task.task, task.round, str(error))
        return Update(**scalars, **sections)

    def _write_common(self, messages: Sequence[Broadcast]) -> Locations:
        """What several messages carry, written once."""
        trees = [tree for message in messages for tree in message.sections()]
        held = Counter(map(id, trees))  # messages that hold the very same tree, as most do
        distinct = {id(tree): tree for tree in trees}
        seen: Counter[int] = Counter()
        for tree in distinct.values():
            for tensor in tree.values():
                seen[id(tensor)] += held[id(tree)]
        everything = (tensor for tree in distinct.values() for tensor in tree.values())
        locations = Locations(self._common.write({id(t): t for t in everything if seen[id(t)] > 1}))
        for tree in distinct.values():
            if all(id(tensor) in locations.of for tensor in tree.values()):
                locations.trees[id(tree)] = locations.layout(tree)
        return locations

    def _send(self, worker: WorkerProcess, waiting: deque[Broadcast], common: Locations) -> None:
        if not waiting:
            return
        message = waiting.popleft()
        slot = worker.sent % len(worker.writers)
        rest = [tree for tree in message.sections() if id(tree) not in common.trees]
        own = {id(t): t for tree in rest for t in tree.values() if id(t) not in common.of}
        worker.clients.append(message.client)
        worker.sent += 1
        with _alive(worker):
            worker.pipe.send(slot, message, common.with_(worker.writers[slot].write(own)))

    def _receive(self, worker: WorkerProcess) -> Any:
        with _alive(worker):
            answer = worker.pipe.receive()
        if isinstance(answer, BaseException):
            raise answer
        if worker.clients:
            worker.clients.popleft()
        return answer

    def close(self) -> None:
        """Let the processes end by themselves."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(5)
            worker.process.kill()
            for writer in worker.writers:
                writer.close()
        self._common.close()
        self._data.close()
        self._folder.cleanup()


@contextmanager
def _alive(worker: WorkerProcess) -> Iterator[None]:
    """Say whose worker it was if its line breaks."""
    try:
        yield
    except (EOFError, ConnectionError):
        worker.process.join(5)
        whose = f"the worker of client {worker.clients[0]}" if worker.clients else "a new worker"
        why = why_ended(needed_script=worker.needs_script and not worker.clients)
        raise RunError(f"{whose} ended (exit code {worker.process.exitcode}); {why}") from None


def _context() -> Any:
    """Children of a clean process that has imported everything once; elsewhere, fresh ones."""
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedshift.transports.preload"])
    return context


@dataclass
class Locations:
    """Where tensors lie, and those of whole trees, by identity."""

    of: dict[int, TensorLocation]
    trees: dict[int, dict[str, TensorLocation]] = field(default_factory=dict)

    def layout(self, tree: Tree) -> dict[str, TensorLocation]:
        """Where each entry of a tree lies."""
        known = self.trees.get(id(tree))
        return {k: self.of[id(t)] for k, t in tree.items()} if known is None else known

    def with_(self, more: dict[int, TensorLocation]) -> Locations:
        """Beside these, others."""
        return Locations(self.of | more, self.trees) if more else self


class TensorPipe:
    """Messages over a connection whose tensors lie in shared memory.

    Where they lie seldom changes from one message in a slot to the next: then it is not said again,
    and the views that the reader has made still hold.
    """

    def __init__(self, connection: Connection, reader: Reader) -> None:
        self.connection, self.reader = connection, reader
        self._said: dict[int, SectionLocations] = {}  # by slot
        self._views: dict[int, list[Tree]] = {}

    def send(self, slot: int, message: Message, locations: Locations) -> None:
        """Say a message's scalars, and where its tensors lie."""
        layout = [locations.layout(tree) for tree in message.sections()]
        news = None if self._said.get(slot) == layout else layout
        self._said[slot] = layout
        self.connection.send((message.scalars(), slot, news))

    def receive(self) -> Any:
        """Scalars and sections of a message, or whatever else was said."""
        said = self.connection.recv()
        if not isinstance(said, tuple):
            return said
        scalars, slot, news = said
        if news is not None:
            self._views[slot] = [self.reader.read_tree(part) for part in news]
        return scalars, dict(zip(Message.SECTIONS, map(dict, self._views[slot]), strict=True))


def serve(connection: Connection, start: Start) -> None:
    """The worker process: answer mail until the line is closed."""
    torch.set_num_threads(1)
    tune_process(worker=True)
    reader = Reader()
    writers = [Writer() for _ in range(QUEUED + Pool.reply_lifetime)]
    try:
        worker = open_plan(start, reader).worker()
        connection.send("ready")
        pipe = TensorPipe(connection, reader)
        for turn in range(sys.maxsize):
            scalars, sections = pipe.receive()
            try:
                reply = worker.visit(Broadcast(**scalars, **sections))
            except FedshiftError as error:
                connection.send(error)
                continue
            slot = turn % len(writers)
            tensors = {id(t): t for tree in reply.sections() for t in tree.values()}
            pipe.send(slot, reply, Locations(writers[slot].write(tensors)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except FedshiftError as error:
        connection.send(error)
    except Exception as error:  # whatever it is, the server has to hear of it
        connection.send(RunError(f"a worker process failed: {type(error).__name__}: {error}"))


def start_of(plan: Plan, store: StateStore, writer: Writer) -> Start:
    """What another process needs; the scenario's data go where it can see them."""
    scenario = plan.config.scenario
    stores = federation.stored(scenario)
    flat = {
        (name, which): getattr(domain, which)
        for name, domain in stores.items()
        for which in ("x", "y", "split")
    }
    keys = dict(enumerate(flat))
    locations = writer.write({i: flat[key] for i, key in keys.items()})
    data: dict[str, tuple[dict[str, TensorLocation], tuple[str, ...]]] = {
        name: ({}, domain.classes) for name, domain in stores.items()
    }
    for i, (name, which) in keys.items():
        data[name][0][which] = locations[i]
    options = federation.options_of(scenario)
    return Start(plan.config, plan.method, store, data, options, plan.compute)


def open_plan(start: Start, reader: Reader) -> Plan:
    """The same federation as the server's, around data in shared memory."""
    scenario = start.config.scenario
    domains = {
        name: Domain(name, classes=classes, **reader.read_tree(locations))
        for name, (locations, classes) in start.data.items()
    }
    loaded.adopt(scenario.data, start.options, domains)
    made = federation.federate(scenario, start.config.seed)
    return Plan(start.config, start.method, made, start.store, compute=start.compute)
