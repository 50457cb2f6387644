"""Visits in worker processes of one thread each; tensors pass through shared memory.

The transport ``pool`` uses every core of one machine. ``engine.replies`` calls
:meth:`Pool.deliver` and puts the replies, which come as they finish, in order. A worker rebuilds
the federation from the configuration around data in shared memory: nothing large may be pickled,
and a visit (one client's work on one message) must give the same bits whichever worker runs it.

The memory scheme. Pipes carry scalars and tensor locations; tensors lie in blocks of shared memory
(:mod:`~fedshift.transports.shared_memory`), and exactly one process writes each block:

- The server writes the data sets into one block, once, before the workers start.
- The server writes one common block per ``deliver``: tensors that several messages hold, above all
  the shared model, are copied there once for all workers.
- The server writes ``QUEUED`` blocks per worker, in turn, with what only one message holds:
  personal entries and payload.
- A worker writes its replies into ``QUEUED + reply_lifetime`` blocks of its own, in turn.

No lock is needed, because the order of sending alone keeps a block from being overwritten while
it is read. A worker holds at most ``QUEUED`` messages: the server sends it message j + ``QUEUED``
once it has received reply j, so the worker is done with message j, and the new message takes over
its block. The same limit protects replies. The next reply in the block of reply j has the number
j + ``QUEUED`` + ``reply_lifetime``. A worker cannot write it before the server has sent the message
of that number, and the server sends that when it receives reply j + ``reply_lifetime``. So reply j
stays intact until the server asks for the ``reply_lifetime``-th reply after it; whoever needs it
longer copies it first (``engine.replies.ReplyBuffer``). The common block is written at the start of
``deliver``, when no worker holds a message.

Locations are sent only when they change. From one message to the next in the same block, names,
shapes and dtypes are nearly always the same, so the tensors lie where the last ones lay. To send
hundreds of locations again and make new views of them would be work for nothing: the sender leaves
them out (:class:`TensorPipe`), and the receiver finds the new values through the views that it made
the first time.
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

QUEUED = 2  # messages that a worker may hold: it starts the next one without waiting for us
SectionLocations = list[dict[str, TensorLocation]]  # location of each entry, by section


@dataclass(frozen=True)
class Start:
    """What a worker process is given when it starts; pickled, so the data are locations."""

    config: RunConfig
    method: Method
    store: StateStore
    data: dict[str, tuple[dict[str, TensorLocation], tuple[str, ...]]]  # domain -> tensors, classes
    options: str
    compute: Compute


@dataclass
class WorkerProcess:
    """The server's side of one worker process."""

    process: Any
    connection: Connection
    pipe: TensorPipe
    writers: list[Writer]  # blocks for messages, used in turn
    clients: deque[str]  # of the messages that it holds, oldest first
    needs_script: bool  # whether it had to import the caller's script
    sent: int = 0  # messages so far; decides the next block


class Pool:
    """``plan.workers`` processes, each of which visits one site at a time.

    A client's next visit may be run by another worker, so the sites' state has to be on disk: a
    plan with a store in memory gets a temporary one.
    """

    # Two, so that a reply that arrives one place before its turn need not be copied.
    reply_lifetime = 2
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
        """Replies as they arrive; each is valid until the second one after it is asked for.

        A worker is given its next message before its reply is handed out, so it computes while
        the server aggregates. If a visit fails and the run's policy is ``fail``, no further message
        is sent, visits under way are finished, and the first error in the order of the messages is
        raised.
        """
        waiting = deque(messages)
        common = self._write_common(messages)
        # With few messages a second one in a worker's queue could leave another worker idle.
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
        for message in messages:  # the first in their order, as ``inprocess`` would
            if message.client in failed:
                raise failed[message.client]

    def _answer(self, worker: WorkerProcess, task: Broadcast) -> Update | Lost | FedshiftError:
        """A worker's next reply; a failed visit is a loss under a lenient policy, else an error."""
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
        """Copy tensors that more than one message holds into the common block.

        Tensors and trees are compared by identity, which is cheap and enough: the server puts the
        very same tree into every message of a round. Such a tree's locations are looked up once,
        not once per message.
        """
        trees = [tree for message in messages for tree in message.sections()]
        held = Counter(map(id, trees))  # how many messages hold the very same tree
        distinct = {id(tree): tree for tree in trees}
        seen: Counter[int] = Counter()  # how many messages hold the very same tensor
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
        """Send the next waiting message; only what the common block lacks is copied."""
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
        """End the workers by closing their connections, then release all memory."""
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
    """If the connection breaks, raise an error that names the client and the likely cause."""
    try:
        yield
    except (EOFError, ConnectionError):
        worker.process.join(5)
        whose = f"the worker of client {worker.clients[0]}" if worker.clients else "a new worker"
        why = why_ended(needed_script=worker.needs_script and not worker.clients)
        raise RunError(f"{whose} ended (exit code {worker.process.exitcode}); {why}") from None


def _context() -> Any:
    """How workers are started: on Linux by a fork server, elsewhere as new interpreters.

    The fork server is a process without threads that has imported torch and every registered method
    once (``transports.preload``), so a worker starts in milliseconds. To fork the caller's own
    process would copy locks that its threads may hold.
    """
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedshift.transports.preload"])
    return context


@dataclass
class Locations:
    """Locations of tensors, and of whole trees, by the ``id`` of the tensor or tree."""

    of: dict[int, TensorLocation]
    trees: dict[int, dict[str, TensorLocation]] = field(default_factory=dict)

    def layout(self, tree: Tree) -> dict[str, TensorLocation]:
        """The location of each entry of a tree."""
        known = self.trees.get(id(tree))
        return {k: self.of[id(t)] for k, t in tree.items()} if known is None else known

    def with_(self, more: dict[int, TensorLocation]) -> Locations:
        """These locations and ``more``; the cached trees are shared, not copied."""
        return Locations(self.of | more, self.trees) if more else self


class TensorPipe:
    """Messages over a connection; their tensors lie in shared memory.

    A slot is the sender's block that a message uses. Both sides remember what was sent last for
    each slot: locations that have not changed are left out, and the receiver reuses its views. So
    every message must be received, in order.
    """

    def __init__(self, connection: Connection, reader: Reader) -> None:
        self.connection, self.reader = connection, reader
        self._sent_locations: dict[int, SectionLocations] = {}  # sent last, by slot
        self._views: dict[int, list[Tree]] = {}  # received last, by slot

    def send(self, slot: int, message: Message, locations: Locations) -> None:
        """Send a message's scalars, and its tensors' locations if they have changed."""
        layout = [locations.layout(tree) for tree in message.sections()]
        changed = None if self._sent_locations.get(slot) == layout else layout
        self._sent_locations[slot] = layout
        self.connection.send((message.scalars(), slot, changed))

    def receive(self) -> Any:
        """Scalars and sections of a message, or whatever else was sent: ``ready`` or an error."""
        received = self.connection.recv()
        if not isinstance(received, tuple):
            return received
        scalars, slot, changed = received
        if changed is not None:
            self._views[slot] = [self.reader.read_tree(part) for part in changed]
        return scalars, dict(zip(Message.SECTIONS, map(dict, self._views[slot]), strict=True))


def serve(connection: Connection, start: Start) -> None:
    """What a worker process runs: answer messages until the server closes the connection."""
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
    except Exception as error:  # whatever it is, the server must be sent it
        connection.send(RunError(f"a worker process failed: {type(error).__name__}: {error}"))


def start_of(plan: Plan, store: StateStore, writer: Writer) -> Start:
    """What another process needs to rebuild the plan; writes the data sets to shared memory."""
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
    """In the worker: the server's plan, around data in shared memory.

    The data sets are put into this process's cache first, so that ``federate`` finds them there and
    neither reads nor decodes anything.
    """
    scenario = start.config.scenario
    domains = {}
    for name, (locations, classes) in start.data.items():
        held = reader.read_tree(locations)
        domains[name] = Domain(name, held["x"], held["y"], held["split"], classes)
    loaded.adopt(scenario.data, start.options, domains)
    made = federation.federate(scenario, start.config.seed)
    return Plan(start.config, start.method, made, start.store, compute=start.compute)
