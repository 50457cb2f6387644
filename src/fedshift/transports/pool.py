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
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedshift.base.errors import FedshiftError, RunError
from fedshift.base.logs import log
from fedshift.base.process import tune_process
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Lost, Update
from fedshift.core.method import Method
from fedshift.core.state import DiskStore, MemoryStore, StateStore
from fedshift.data.library import loaded
from fedshift.data.samples import Domain
from fedshift.engine import federation
from fedshift.engine.build import Plan
from fedshift.engine.compute import Compute
from fedshift.engine.spawn import end_if_repeated, needs_script, why_ended, without_script
from fedshift.transports.shared_memory import Reader, TensorLocation, Writer
from fedshift.transports.tensor_pipe import Locations, TensorPipe

PATIENCE = 2.0  # seconds without any reply after which we look at the workers
RESTARTS = 3  # of one worker
QUEUED = 2  # messages that a worker may hold: it starts the next one without waiting for us


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
    since: float = 0.0  # when it last took or answered a message
    stopped: bool = False  # whether it was found stopped when we last looked
    restarts: int = 0


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
        self._lenient, self._timeout = plan.policy.lenient, plan.policy.timeout
        self._start = start_of(plan, self.store, self._data)
        needed = needs_script(self._start)
        for _ in range(plan.workers):
            process, here = self._spawn(needed)
            writers = [Writer() for _ in range(QUEUED)]
            pipe = TensorPipe(here, self._reader)
            self._workers.append(WorkerProcess(process, here, pipe, writers, deque(), needed))
        for worker in self._workers:
            self._receive(worker)

    def _spawn(self, needed: bool) -> tuple[Any, Connection]:
        """A new worker process and our end of its connection."""
        context = _context()
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, self._start), daemon=True)
        with without_script(unless=needed):
            process.start()
        there.close()
        return process, here

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
            for worker in self._ready(busy, messages, common):
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

    def _ready(
        self, busy: Sequence[WorkerProcess], messages: Sequence[Broadcast], common: Locations
    ) -> list[WorkerProcess]:
        """Workers that have replied; if none does for a while, those that are stuck start anew."""
        ready = wait([worker.connection for worker in busy], PATIENCE)
        for worker in busy if not ready else ():
            if self._is_stuck(worker):
                self._restart(worker, messages, common)
        return [worker for worker in busy if worker.connection in ready]

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
        worker.since = time.monotonic()
        with _alive(worker):
            worker.pipe.send(slot, message, common.with_(worker.writers[slot].write(own)))

    def _receive(self, worker: WorkerProcess) -> Any:
        with _alive(worker):
            answer = worker.pipe.receive()
        if isinstance(answer, BaseException):
            raise answer
        if worker.clients:
            worker.clients.popleft()
        worker.since, worker.stopped = time.monotonic(), False
        return answer

    def _is_stuck(self, worker: WorkerProcess) -> bool:
        """Whether a worker is stopped (SIGSTOP) for the second time we look, or past the timeout.

        The policy's timeout holds for one visit here. Without one, a visit may take any time.
        """
        before, worker.stopped = worker.stopped, is_stopped(worker.process.pid)
        late = self._timeout is not None and time.monotonic() - worker.since > self._timeout
        return late or (before and worker.stopped)

    def _restart(
        self, worker: WorkerProcess, messages: Sequence[Broadcast], common: Locations
    ) -> None:
        """End a stuck worker and let a new process repeat the visits that it held.

        A repeated visit starts from the client's state of the round before (``core.state``), so it
        gives the same bits. After ``RESTARTS`` of them the run ends with an error.
        """
        held = [next(m for m in messages if m.client == client) for client in worker.clients]
        worker.process.kill()
        worker.process.join(5)
        worker.connection.close()
        if worker.restarts == RESTARTS:
            raise RunError(
                f"the worker of client {worker.clients[0]} was stuck {RESTARTS + 1} times; look at "
                "what holds it, and resume the run",
                "resume",
            )
        log.warning("the worker of client %s is stuck; it is started anew", worker.clients[0])
        worker.process, worker.connection = self._spawn(worker.needs_script)
        worker.pipe = TensorPipe(worker.connection, self._reader)
        worker.clients.clear()
        worker.restarts, worker.stopped = worker.restarts + 1, False
        self._receive(worker)
        waiting = deque(held)
        while waiting:
            self._send(worker, waiting, common)

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


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; on Linux only, elsewhere nobody can tell."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


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
    made = federation.federate_for(start.method, scenario, start.config.seed)
    return Plan(start.config, start.method, made, start.store, compute=start.compute)
