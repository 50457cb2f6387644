"""What goes wrong within a run: installed in a process of its own before the command starts.

``chaos_attempts`` forks a process per attempt, and that calls :func:`install` with one fault, a
dictionary that a seed has decided. Nothing here touches the code of a run: file operations are seen
by an audit hook, and messages by a transport around the real one. A count (of file operations, of
messages) is the same in every repetition; only ``kill-time`` depends on a clock.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from fedshift.core.message import Update
from fedshift.transports import TRANSPORTS
from fedshift.transports import pool as pool_module
from fedshift.transports.flower.envelope import Envelope
from fedshift.transports.flower.grid import FlowerGrid, InMemoryGrid, client_app
from fedshift.transports.flower.transport import FlowerTransport, SiteReply, Timeouts

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
HARMLESS = ("delay", "reorder", "duplicate", "repeat")  # the reply arrives all the same
HARMFUL = ("drop-request", "drop-reply", "corrupt")  # and here it does not
RATE = 0.15  # of messages that something happens to
LATE = 0.6  # seconds after which Flower's server takes a reply for lost


class Journal:
    """A file beside the run to which faults and requests are appended; a kill loses no line."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words) -> None:
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())


class Watch:
    """Counts what a run does to its files and how many messages it sends, and acts at one count."""

    def __init__(self, fault, run: Path, journal: Journal) -> None:
        self.fault, self.run, self.journal = fault, str(run), journal
        self.files, self.messages = 0, 0

    def seen(self, event, args) -> None:
        """The audit hook: called before the operation takes place."""
        if event == "open":
            changes = isinstance(args[2], int) and args[2] & WRITING
        else:
            changes = event in CHANGES
        if changes and isinstance(args[0], str) and args[0].startswith(self.run):
            self.files += 1
            if self.files == self.fault.get("file"):
                self.act(args[0])

    def message(self, pool=None) -> None:
        """A message is about to be sent, or a reply about to be handed on."""
        self.messages += 1
        if self.messages == self.fault.get("message"):
            self.act("", pool)

    def act(self, path, pool=None) -> None:
        kind = self.fault["kind"]
        self.journal.note("fault", kind)
        if kind.startswith("kill-worker") or kind == "stop-worker":
            worker = pool._workers[self.fault["worker"] % len(pool._workers)]
            os.kill(worker.process.pid, signal.SIGKILL if "kill" in kind else signal.SIGSTOP)
        elif kind in ("tear", "full"):
            size = Path(path).stat().st_size if Path(path).is_file() else 0
            largest = size + self.fault["bytes"]
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        elif kind.startswith("term"):
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self, path: Path) -> None:
        path.write_text(f"{self.files} {self.messages}")


class Troubled:
    """A transport around another one, in which messages are watched, and may suffer."""

    reply_lifetime = 0  # every reply is copied
    checks_finite = False

    def __init__(self, inner, watch: Watch, journal: Journal, trouble=None) -> None:
        self.inner, self.store, self.watch, self.journal = inner, inner.store, watch, journal
        self.trouble = trouble

    def deliver(self, messages):
        fates = {m.client: self.trouble.fate(m) if self.trouble else "" for m in messages}
        for message in messages:
            self.watch.message(self.inner)
            if message.task == "train" and fates[message.client] != "drop-request":
                self.journal.note("train", message.round, message.client)
        sent = [m for m in messages if fates[m.client] != "drop-request"]
        repeated = [m for m in sent if fates[m.client] == "repeat"]
        for message in repeated:  # the site gets the very same request twice
            for _ in self.inner.deliver([message]):
                pass
        if "reorder" in fates.values():
            sent = sent[::-1]
        for reply in self.inner.deliver(sent) if sent else ():
            self.watch.message(self.inner)
            yield from self.suffered(reply, fates.get(reply.client, ""))

    def suffered(self, reply, fate):
        if not isinstance(reply, Update) or fate in ("", "repeat", "reorder"):
            yield reply.own() if isinstance(reply, Update) else reply
        elif fate == "delay":
            time.sleep(0.02)
            yield reply.own()
        elif fate == "duplicate":
            yield reply.own()
            yield reply.own()
        elif fate == "corrupt":
            yield self.trouble.corrupted(reply.own())

    def close(self) -> None:
        self.inner.close()


class Trouble:
    """Decides by a seed what happens to a message; harmful things at most twice to the same."""

    def __init__(self, seed: str, journal: Journal) -> None:
        self.random, self.journal = random.Random(seed), journal
        self.harmed: dict[tuple, int] = {}

    def fate(self, message) -> str:
        if self.random.random() > RATE:
            return ""
        key = message.round, message.task, message.client
        kinds = HARMLESS if self.harmed.get(key, 0) >= 2 else HARMLESS + HARMFUL
        fate = self.random.choice(kinds)
        if fate in HARMFUL:
            self.harmed[key] = self.harmed.get(key, 0) + 1
        if fate in (*HARMFUL, "duplicate"):
            self.journal.note("lost", *key, fate)
        else:
            self.journal.note("harmless", *key, fate)
        return fate

    def corrupted(self, update: Update) -> Update:
        """A reply that a part must never see."""
        floats = [k for k, v in update.shared.items() if v.is_floating_point()]
        ways = ["round", "examples", "name"] + (["nan", "shape", "missing"] if floats else [])
        way = self.random.choice(ways)
        if way == "round":
            return replace(update, round=update.round + 1)
        if way == "examples":
            return replace(update, examples=-1)
        if way == "name":
            return replace(update, shared={**update.shared, "no such entry": torch.zeros(1)})
        key = self.random.choice(floats)
        value = update.shared[key]
        if way == "nan":
            value.view(-1)[0] = float("nan")
        rest = {k: v for k, v in update.shared.items() if k != key}
        if way == "shape":
            rest[key] = torch.zeros(*value.shape, 2)
        return replace(update, shared=rest) if way != "nan" else update


class TroubledGrid:
    """Flower's grid with requests and replies that are lost, late, damaged or come twice.

    A node may also be gone for a moment. What Flower promises is kept: replies belong to tickets.
    """

    def __init__(self, grid, watch: Watch, journal: Journal, trouble=None) -> None:
        self.grid, self.watch, self.journal, self.trouble = grid, watch, journal, trouble
        self.fates: dict[str, str] = {}
        self.late: dict[str, list[SiteReply]] = {}

    def nodes(self):
        found = self.grid.nodes()
        if self.trouble and self.trouble.random.random() < RATE / 3:
            self.journal.note("harmless 0 nodes - gone")
            found = set(sorted(found)[1:])
        return found

    def send(self, requests):
        tickets = []
        for number, request in enumerate(requests):
            self.watch.message()
            for client in self.clients(request):
                self.journal.note("train", "-", client)
            fate = self.fate(request)
            if fate == "drop-request":
                tickets.append(f"never-{id(self)}-{self.watch.messages}-{number}")
            else:
                tickets.append(self.grid.send([request])[0])
            self.fates[tickets[-1]] = fate
        return tickets

    def clients(self, request):
        """The clients that a request asks to train."""
        text = request.envelope.text
        if request.kind != "train":
            return []
        return [text.partition('"client": "')[2].partition('"')[0]]

    def fate(self, request):
        if not self.trouble or request.kind == "query.whoami":
            return ""
        if self.trouble.random.random() > RATE:
            return ""
        fate = self.trouble.random.choice((*HARMLESS[:3], *HARMFUL))
        self.journal.note("harmless" if fate in HARMLESS else "lost", "-", request.kind, "-", fate)
        return fate

    def fetch(self, tickets):
        for ticket in sorted(tickets):
            if ticket in self.late:
                return self.late.pop(ticket)
        real = {t for t in tickets if not t.startswith("never-")}
        replies = []
        for reply in self.grid.fetch(real):
            self.watch.message()
            replies += self.suffered(reply, self.fates.get(reply.ticket, ""))
        return replies

    def suffered(self, reply, fate):
        if fate == "drop-reply":
            return []
        if fate == "delay":
            self.late[reply.ticket] = [reply]
            return []
        if fate == "duplicate":
            return [reply, reply]
        if fate == "corrupt" and reply.envelope is not None:
            return [replace(reply, envelope=self.corrupted(reply.envelope))]
        return [reply]

    def corrupted(self, envelope: Envelope) -> Envelope:
        blocks, text = dict(envelope.blocks), envelope.text
        way = self.trouble.random.choice(("cut", "gone", "half", "noise"))
        first = next(iter(blocks), None)
        if way == "cut" and first is not None:
            blocks[first] = blocks[first][: len(blocks[first]) // 2]
        elif way == "gone" and first is not None:
            del blocks[first]
        elif way == "half":
            text = text[: len(text) // 2]
        else:
            text = "\x00" + text
        return Envelope(text, blocks)


def flower_in_memory(watch: Watch, journal: Journal, trouble=None):
    """Flower's own apps and messages, in this process."""

    def opened(plan):
        worker = plan.worker()
        nodes = [{"client": client} for client in plan.federation.sites]
        app = client_app(lambda run, node: worker)
        grid = TroubledGrid(FlowerGrid(InMemoryGrid(app, nodes)), watch, journal, trouble)
        late = LATE if trouble else None
        timeouts = Timeouts(connect=20.0, reply=late, poll=0.005)
        return FlowerTransport(
            grid, plan.config, store=plan.store, timeouts=timeouts, policy=plan.policy
        )

    return opened


def install(fault, run: Path, beside: Path) -> Watch:
    """Prepare this process, which runs one attempt and ends."""
    journal = Journal(beside / "journal")
    watch = Watch(fault, run, journal)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if fault["kind"] == "tear":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    pool_module.PATIENCE = 0.2
    trouble = Trouble(fault["seed"], journal) if fault["kind"] == "messages" else None
    for name, real in list(TRANSPORTS.items()):
        TRANSPORTS[name] = lambda plan, real=real: Troubled(real(plan), watch, journal, trouble)
    TRANSPORTS["flower"] = flower_in_memory(watch, journal, trouble)
    spawn = pool_module.Pool._spawn

    def noted(pool, needed):
        process, here = spawn(pool, needed)
        journal.note("worker", process.pid)
        return process, here

    pool_module.Pool._spawn = noted
    sys.addaudithook(watch.seen)
    return watch
