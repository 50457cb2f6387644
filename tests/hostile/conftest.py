"""A playground for hostile replies: real rounds, with one site that may say anything.

The honest replies of each method are computed once, by its own worker, and kept; a hostile case
puts the server back to where it was and plays the round again with one reply replaced. All replies
travel through the envelope of the Flower transport, as those of real sites do.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from functools import cache

import pytest
import torch

from fedshift.base.errors import FedshiftError, RunError
from fedshift.core.config import configure
from fedshift.core.message import Lost
from fedshift.core.server import Policy
from fedshift.core.state import MemoryStore
from fedshift.data.dealing.partitions import PerDomain
from fedshift.engine.round import enrol, play_round
from fedshift.evaluate.protocols import evaluate
from fedshift.experiment.session import Options, prepare
from fedshift.testing import granting, tiny_scenario
from fedshift.transports.flower.envelope import Envelope, to_envelope
from fedshift.transports.flower.transport import SiteReply, read
from fedshift.transports.inprocess import InProcess

HOSTILE = "dark-0"
MAX_WEIGHT = 0.5  # three sites of the tiny scenario are below it: only a claim reaches it
TALLY: Counter[str] = Counter()


class Replayed(InProcess):
    """Honest replies, computed once per question, with one of them changed on its way."""

    reply_lifetime = 0
    checks_finite = False

    def __init__(self, worker, *, keep):
        super().__init__(worker, lenient=True)
        self.kept, self.keep = {}, keep
        self.task, self.change, self.sent = None, None, None

    def deliver(self, messages):
        for message in messages:
            try:
                yield from read(message.client, [message], SiteReply("", self.letter(message)))
            except FedshiftError as error:
                yield Lost(message.client, message.task, message.round, str(error))

    def letter(self, message):
        """What the site sends: an envelope of its reply, or what the case makes of it."""
        hostile = (message.client, message.task) == (HOSTILE, self.task)
        if hostile and self.change is None:
            raise RunError("it is silent")
        update = self.honest(message)
        sent = self.change(update) if hostile else update
        self.sent = sent if hostile else self.sent
        return sent if isinstance(sent, Envelope) else to_envelope([sent], {})

    def honest(self, message):
        key = message.client, message.task
        if key not in self.kept or not self.keep:
            found = self.worker.visit(message)
            self.kept[key] = found.own()
        return self.kept[key]


class Playground:
    """One method in the tiny scenario, before round 1."""

    def __init__(self, method, **changes):
        given = {"steps": 1, "batch_size": 8, "evaluate_every": 99, "max_weight": MAX_WEIGHT}
        given["partition"] = PerDomain(clients_per_domain=2)  # HOSTILE is one of these clients
        config, whole = configure(method, tiny_scenario(**(granting(method) | given | changes)))
        self.keep = not any(channel.decodes_together for channel in whole.channels)
        opened = Options(transport=lambda plan: Replayed(plan.worker(), keep=self.keep))
        self.session = prepare(config, whole, None, opened)
        self.server, self.transport = self.session.server, self.session.transport
        everybody = any(d.needs_full_participation for d in whole.declared)
        self.server.policy = Policy() if everybody else Policy("skip")
        self.held = {
            name: copy.copy(getattr(self.server, name)) for name in ("shared", "roster", "visits")
        }
        self.state = {name: dict(entries) for name, entries in self.server.state.items()}

    def rewind(self, *, enrolled=True):
        """Put the server back to before round 1, or to before anybody has enrolled."""
        server, record = self.server, self.session.record
        for name, value in self.held.items():
            setattr(server, name, copy.copy(value))
        server.state.clear()
        server.state.update({name: dict(entries) for name, entries in self.state.items()})
        server.round, server.participants, server.personal = 0, 0, MemoryStore()
        record.book.rows.clear()
        if not enrolled:
            server.roster, server.visits = {}, {}
            server.state.clear()

    def play(self, task, change):
        """Play what asks for ``task``, with the hostile site's reply to it changed."""
        self.rewind(enrolled=task != "enrol")
        self.transport.task, self.transport.change = task, change
        args = self.server, self.transport, self.session.record
        if task == "enrol":
            enrol(self.server, self.transport, self.server.sites, self.session.record)
        elif task in ("train", "talk", "statistics"):
            play_round(*args)
        else:
            self.transport.task = None
            play_round(*args)
            self.transport.task = task
            found = evaluate(*args[:2], self.session.federation, self.session.record)
            json.dumps({p: {s: m.to_json() for s, m in v.items()} for p, v in found.items()})
        return dict(self.server.shared)

    @cache  # noqa: B019  playgrounds live as long as the session
    def without(self, task):
        """The model if the hostile site is silent; None if the method cannot do without it."""
        try:
            return self.play(task, None)
        except RunError:
            return None

    def outcome(self, task, change):
        """``refused``, ``harmless`` or ``ended``; raises if the reply did any harm."""
        TALLY["sent"] += 1
        alone = self.without(task)
        try:
            after = self.play(task, change)
        except RunError as error:
            if HOSTILE not in str(error) or (alone is not None and self.keep):
                raise
            kind = "refused" if alone is None else "ended"
        else:
            lost = [r for r in self.session.record.losses().get(HOSTILE, []) if r["task"] == task]
            kind = "refused" if lost else "harmless"
            self.require_harmless(after, alone, refused=bool(lost))
            if task == "train" and not lost and not self.server.method.parts:
                self.require_bounded(after, alone)
        TALLY[kind] += 1
        return kind

    def require_harmless(self, after, alone, *, refused):
        """Finite numbers; the model without the site if it was refused; else within max_weight."""
        for entries in (after, *self.server.state.values()):
            for key, value in entries.items():
                assert not value.is_floating_point() or value.isfinite().all(), f"{key}: not finite"
        if refused:
            assert alone is not None
            odd = [k for k in alone if not torch.equal(alone[k], after[k])]
            assert not odd, f"{odd[:3]} moved"

    def require_bounded(self, after, alone):
        """In a mean: no further from the others' than max_weight of the way to what it sent."""
        sent = getattr(self.transport.sent, "shared", {})
        for key, value in sent.items():
            way = (value.double() - alone[key]).abs()
            moved = (after[key].double() - alone[key]).abs()
            assert (moved <= MAX_WEIGHT * way * (1 + 1e-4) + 1e-6).all(), f"{key} moved too far"


@pytest.fixture(scope="session")
def playground():
    """``playground(method, **changes)``: one per method and change, kept for the session."""
    made = {}

    def find(method, **changes):
        key = method, tuple(sorted(changes.items()))
        if key not in made:
            made[key] = Playground(method, **changes)
        return made[key]

    return find


def pytest_terminal_summary(terminalreporter):
    """How many hostile replies were played, and what became of them."""
    if TALLY:
        told = ", ".join(
            f"{TALLY[kind]} {kind}" for kind in ("sent", "refused", "harmless", "ended")
        )
        terminalreporter.write_line(f"hostile replies: {told}")
