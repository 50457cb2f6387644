"""Whole runs side by side in worker processes of one torch thread each, with progress shown here.

``experiment.compare`` uses it. Progress and results take different routes. A result is the return
value of its task. Progress is put on a queue by each worker's :class:`QueueListener`, and a thread
here (:func:`relay`) passes it to the listeners, since bars and notebook cells can be drawn by this
process only.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing.queues import Queue
from typing import Any

import torch

from fedshift.base.process import tune_process
from fedshift.core.config import RunConfig
from fedshift.core.message import Lost, Update
from fedshift.engine.spawn import end_if_repeated, needs_script, why_ended, without_script
from fedshift.experiment.executors import Futures, WorkerLostError
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.listener import Listener
from fedshift.report.results import RunResult
from fedshift.runs.record import Row


class Processes(Futures):
    """Worker processes of this machine.

    Processes are spawned rather than forked, because a fork of a process with torch threads may
    hang. The executor starts them inside ``submit``; hence ``without_script`` encloses those calls.
    If one is killed, the pool cannot go on, and all runs that were under way lose their worker.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        slots: int,
        listeners: Mapping[str, Listener],
        sent: object,
    ) -> None:
        super().__init__(slots)
        end_if_repeated()
        self.work, self.needed = work, needs_script(sent)
        self.context = multiprocessing.get_context("spawn")
        self.queue: Queue[Any] = self.context.Queue()
        self.stack = ExitStack()
        self.stack.enter_context(relay(self.queue, listeners))
        self.pool = self._pool()

    def _pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.slots, self.context, _set_up, (self.queue,))

    def start(self, job: Any) -> Future[Any]:
        """Begin a run in a process that is free, or in a new one."""
        with without_script(unless=self.needed):
            try:
                return self.pool.submit(self.work, job)
            except BrokenProcessPool:
                self._replace()
                return self.pool.submit(self.work, job)

    def _replace(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.pool = self._pool()

    def lost(self, error: Exception, job: Any) -> Exception:  # noqa: ARG002
        """A run whose process ended has lost its worker."""
        if not isinstance(error, BrokenProcessPool):
            return error
        why = why_ended(needed_script=self.needed)
        return WorkerLostError(f"a process of the comparison ended; {why}")

    def close(self) -> None:
        """Wait for the runs under way, and end the processes; every report has been passed on."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.stack.close()


@contextmanager
def relay(queue: Queue[Any], listeners: Mapping[str, Listener]) -> Iterator[None]:
    """Pass progress reports from the queue to the listeners, in a thread, while the block runs.

    A None on the queue ends the thread. It is put there after the worker processes have ended, so
    every report has been passed on when the block is left.
    """

    def pump() -> None:
        while (item := queue.get()) is not None:
            name, hook, args = item
            getattr(listeners[name], hook)(*args)

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    try:
        yield
    finally:
        queue.put(None)
        thread.join()


_QUEUE: Queue[Any] | None = None  # to the parent; set once, when a worker process starts


def _set_up(queue: Queue[Any]) -> None:
    """Initialise a worker process: its queue, one torch thread, process settings."""
    global _QUEUE  # noqa: PLW0603  a queue can reach an executor's process only by initialiser
    _QUEUE = queue
    torch.set_num_threads(1)
    tune_process()


class QueueListener(Listener):
    """A listener in a worker process that puts every call on the queue to the parent."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _forward(self, hook: str, *args: Any) -> None:
        """Put the hook's name and arguments on the queue, under the name of the run."""
        if _QUEUE is not None:
            _QUEUE.put((self.name, hook, args))

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Forward the start of a run."""
        self._forward("started", config, clients, first_round)

    def replied(self, update: Update) -> None:
        """Forward a reply without its tensors, which stay in this process."""
        short = Update(update.client, update.task, update.round, metrics=update.metrics)
        self._forward("replied", short)

    def lost(self, lost: Lost) -> None:
        """Forward a loss."""
        self._forward("lost", lost)

    def round_done(self, row: Row) -> None:
        """Forward the row of a committed round."""
        self._forward("round_done", row)

    def expected(self, estimate: Estimate) -> None:
        """Forward what the run takes in all."""
        self._forward("expected", estimate)

    def finished(self, result: RunResult) -> None:
        """Forward the result."""
        self._forward("finished", result)
