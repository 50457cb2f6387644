"""The contract that every method must keep, ours or of another package, as functions.

``fedshift check METHOD`` runs it on one method, and pytest on every registered one. Each clause
runs the method on a tiny scenario, usually twice in two ways that must not differ, and compares
every tensor bit for bit. A clause must never compare with stored results, so that it applies to any
method. ``fedshift check`` prints a clause's whole docstring, so that has to be one line.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
from torch import Tensor

from fedshift.base import seeds, tree
from fedshift.base.extras import is_installed
from fedshift.base.process import one_thread
from fedshift.base.tree import Tree
from fedshift.core.client import Client
from fedshift.core.config import configure
from fedshift.core.loop import Step
from fedshift.core.message import Broadcast, Lost, Message, Update
from fedshift.core.method import Method
from fedshift.core.net import Scope
from fedshift.core.part import Part
from fedshift.core.registry import build
from fedshift.core.resource import resource
from fedshift.core.scenario import Scenario
from fedshift.core.server import Transport
from fedshift.data.dealing.partitions import Heterogeneity, PerDomain
from fedshift.data.registry import register_dataset
from fedshift.data.samples import Domain
from fedshift.engine.build import Plan
from fedshift.engine.federation import federate_for
from fedshift.engine.round import collect, negotiate
from fedshift.engine.visit import Worker
from fedshift.evaluate.protocols import evaluate
from fedshift.experiment.session import Options, Session, prepare
from fedshift.transports.inprocess import InProcess

Flat = dict[str, Tensor]


@register_dataset("tiny")
def tiny() -> dict[str, Domain]:
    """Three looks of four noisy 8x8 patterns: dark, bright and tinted."""
    rng = np.random.default_rng(seeds.derive("tiny"))
    patterns = rng.integers(40, 180, (4, 8, 8, 3))
    shifts = {"dark": (22, (0, 0, 0)), "bright": (13, (60, 60, 60)), "tinted": (12, (50, 0, 30))}
    return {name: _noisy(rng, name, patterns, n, tint) for name, (n, tint) in shifts.items()}


def _noisy(
    rng: np.random.Generator, name: str, patterns: Any, train: int, tint: Sequence[int]
) -> Domain:
    y = np.arange(train + 28) % 4
    x = (patterns[y] + np.array(tint) + rng.normal(0, 12, (len(y), 8, 8, 3))).clip(0, 255)
    split = np.repeat(np.array([0, 1, 2], dtype=np.uint8), (train, 12, 16))
    images, labels = torch.from_numpy(x.astype(np.uint8)), torch.from_numpy(y.astype(np.int64))
    return Domain(name, images, labels, torch.from_numpy(split), ("a", "b", "c", "d"))


def tiny_scenario(**changes: Any) -> Scenario:
    """Four clients of unequal size in two domains, a third domain unseen, three rounds."""
    base = Scenario(
        name="tiny",
        data="tiny",
        domains=("dark", "bright"),
        unseen="tinted",
        partition=PerDomain(clients_per_domain=2),
        backbone_options={"width": 4},
        rounds=3,
        epochs=2,
        batch_size=4,
        protocols=("personal", "global", "unseen", "unseen-adapted"),
        allow=("client_val", "domain_ids", "server_unlabelled"),
    )
    return base.change(**changes)


def granting(method: str | Method) -> dict[str, Any]:
    """What the tiny scenario lacks for the extra data that the method declares it needs."""
    whole = method if isinstance(method, Method) else build(method)
    needs = {need for part in whole.declared for need in part.needs}
    given: dict[str, Any] = {"labelled": 0.5} if "client_unlabelled" in needs else {}
    given |= {"public": "tiny"} if needs & {"public_set", "public_labels"} else {}
    mixed = Heterogeneity(clients=4, lam=0.6)  # every client holds rows of both domains
    given |= {"partition": mixed} if "sample_domains" in needs else {}
    base = tiny_scenario()
    extra = [need for need in sorted(needs) if not resource(need).granted(base)]
    return given | ({"allow": (*base.allow, *extra)} if extra else {})


class RecordingTransport(InProcess):
    """In-process transport that records every message, and can visit the sites backwards."""

    def __init__(self, worker: Worker, *, backwards: bool = False) -> None:
        super().__init__(worker)
        self.backwards = backwards
        self.seen: list[Message] = []

    def deliver(self, messages: Sequence[Broadcast]) -> Iterator[Update | Lost]:
        """Deliver in process, and keep a copy of each message and reply."""
        self.seen += messages
        for reply in super().deliver(messages[::-1] if self.backwards else messages):
            if isinstance(reply, Update):
                self.seen.append(reply.own())
            yield reply


def start(
    method: str | Method, *, path: Path | None = None, seed: int = 0, **changes: Any
) -> Session:
    """A tiny run before round 1, or resumed from its last checkpoint in ``path``."""
    config, whole = configure(method, tiny_scenario(**changes), seed=seed)
    session = prepare(config, whole, path)
    assert isinstance(session.transport, InProcess)
    session.transport = RecordingTransport(session.transport.worker)
    return session


def begin(method: str | Method, **options: Any) -> Session:
    """As :func:`start`, with the extra data that the method needs."""
    return start(method, **(granting(method) | options))


def play(session: Session, rounds: int | None = None) -> Session:
    """Run some more rounds, by default all that remain."""
    last = session.server.scenario.rounds
    for _ in range(last - session.server.round if rounds is None else rounds):
        session.advance()
    return session


_reference: dict[str, Session] = {}  # the last one


def reference(method: str | Method) -> Session:
    """A finished in-process run of the method, to compare with or to look at, never to go on with.

    Most clauses need the same one, so the last is kept.
    """
    config, whole = configure(method, tiny_scenario(**granting(method)))
    key = f"{whole!r} {config.scenario.model_dump_json()}"
    if key not in _reference:
        _reference.clear()
        _reference[key] = play(begin(whole))
    return _reference[key]


def worker(session: Session) -> Worker:
    """The worker of an in-process session, which holds the sites' net and state."""
    assert isinstance(session.transport, InProcess)
    return session.transport.worker


def everything(session: Session) -> Flat:
    """All tensors that a run leaves: shared, personal, server state, every client's state.

    Comparing these instead of metrics catches differences that accuracy would hide.
    """
    server = session.server
    groups: dict[str, Tree] = {"shared": server.shared}
    groups |= {f"personal/{c}": server.personal_of(c) for c in server.roster}
    groups |= {f"server/{n}": t for n, t in server.state.items()}
    for client in server.roster:
        state = session.transport.store.load(client, before=server.round + 1)
        groups |= {f"client/{client}/{n}": t for n, t in state.items()}
    return tree.merge(tree.prefixed(name, entries) for name, entries in groups.items())


def numbers(session: Session) -> list[dict[str, Any]]:
    """Metrics of every round, without times, and without the privacy spent.

    Privacy is spent by every request, also by those of a round that is repeated after a crash.
    """
    rows = session.record.metrics
    return [{k: v for k, v in r.items() if "seconds" not in k and k != "privacy"} for r in rows]


def require_same(a: Session, b: Session, what: str) -> None:
    """Raise unless both runs left the same tensors, bit for bit, and the same metrics."""
    left, right = everything(a), everything(b)
    odd = sorted(left.keys() ^ right.keys())
    assert not odd, f"{what}: only one of them left {odd[:3]}"
    for key, value in left.items():
        assert torch.equal(value, right[key]), f"{what}: {key} differs"
    assert numbers(a) == numbers(b), f"{what}: metrics differ"


def finite_and_moving(method: str | Method) -> None:
    """Every tensor stays finite, and training moves the model."""
    session = reference(method)
    left = everything(session)
    for key, value in left.items():
        assert bool(value.isfinite().all()), f"{key} is not finite"
    moved = [
        not torch.equal(value, worker(session).initial[name])
        for key, value in left.items()
        if (name := key.rpartition("/")[2]) in worker(session).initial and value.is_floating_point()
    ]
    assert any(moved), "no entry of the net moved"
    assert all(math.isfinite(v) for row in numbers(session) for v in row["losses"].values())


def in_process_equals_bytes(method: str | Method) -> None:
    """Messages as Python objects and messages through bytes give the same run."""
    config, whole = configure(method, tiny_scenario(**granting(method)))
    here = reference(method)
    there = play(prepare(config, whole, None, Options(transport="wire")))
    require_same(here, there, "in process and through bytes")


def in_process_equals_pool(method: str | Method) -> None:
    """One process and a pool of two give the same run."""
    config, whole = configure(method, tiny_scenario(**granting(method)))
    here = reference(method)
    there = prepare(config, whole, None, Options(transport="pool", workers=2))
    try:
        require_same(here, play(there), "in process and in a pool")
    finally:
        there.transport.close()


def in_process_equals_flower(method: str | Method) -> None:
    """Flower's own apps on a grid in memory give the same run (with the extra ``flower``)."""
    if not is_installed("flwr"):
        raise SkipTest('Flower is not installed; pip install "fedshift[flower]"')
    from fedshift.transports.flower import grid  # noqa: PLC0415  the extra

    config, whole = configure(method, tiny_scenario(**granting(method)))
    sites: list[Worker] = []
    there: list[Session] = []

    def play_there(connect: grid.Connect, settings: Mapping[str, Any]) -> None:
        def opened(plan: Plan) -> Transport:
            sites.append(plan.worker())
            return connect(plan)

        there.append(play(prepare(config, whole, None, Options(transport=opened, **settings))))

    app = grid.client_app(lambda run, node: sites[0])  # noqa: ARG005  one run, all sites
    clients = federate_for(whole, config.scenario, config.seed).sites
    nodes = [{"client": client} for client in clients]
    grid.InMemoryGrid(app, nodes).play(grid.server_app(play_there))
    require_same(reference(method), there[0], "in process and through Flower")


def private_stays_private(method: str | Method) -> None:
    """No private tensor is in any message, by name or by value."""
    session = reference(method)
    site = worker(session)
    private = site.keys(Scope.PRIVATE)
    assert isinstance(session.transport, RecordingTransport)
    for message in session.transport.seen:
        leaked = private & (message.shared.keys() | message.personal.keys())
        assert not leaked, f"{message.task} carries {sorted(leaked)[:3]}"
    loose = [m.personal | m.payload for m in session.transport.seen]
    travelled = [tensor for entries in loose for tensor in entries.values()]
    for client in session.server.roster:
        for key, value in site.store.load(client, before=session.server.round + 1)["net"].items():
            same = [t for t in travelled if t.shape == value.shape and value.numel() > 1]
            assert not any(torch.equal(t, value) for t in same), f"{client}'s {key} travelled"


def order_is_irrelevant(method: str | Method) -> None:
    """Visiting the sites in another order gives the same run."""
    backwards = begin(method)
    backwards.transport = RecordingTransport(worker(backwards), backwards=True)
    require_same(reference(method), play(backwards), "forwards and backwards")


def seed_decides(method: str | Method) -> None:
    """The same seed gives the same bits, another seed gives others."""
    first, second, other = reference(method), play(begin(method)), play(begin(method, seed=1))
    require_same(first, second, "one seed, twice")
    a, b = everything(first), everything(other)
    assert any(not torch.equal(a[k], b[k]) for k in a.keys() & b.keys()), "the seed has no effect"


def resumes_exactly(method: str | Method) -> None:
    """A run killed after any round, or within one, and resumed equals the uninterrupted one."""
    with tempfile.TemporaryDirectory() as folder:
        whole = reference(method)
        for finished in range(whole.server.scenario.rounds):
            path = Path(folder) / str(finished)
            killed = play(begin(method, path=path), finished)
            killed.server.round += 1  # half a round: client states are written, no checkpoint is
            some = sorted(killed.server.roster)[-2:]
            first = negotiate(killed.server, killed.transport, some, killed.record)
            collect(killed.server, killed.transport, "train", first, killed.record)
            resumed = play(begin(method, path=path))
            require_same(whole, resumed, f"uninterrupted and killed after round {finished}")


class IntrusivePart(Part):
    """A part that reads all that a part may read and disturbs what it may disturb."""

    references = frozenset({"received", "initial"})

    def probe(self, client: Client) -> Tree:
        """Forward in train mode, draw random numbers, zero the weights; all must be undone."""
        client.net.train()
        x, _ = client.site.data.train.take(torch.arange(min(4, client.examples)))
        client.net(x)
        torch.rand(3)
        client.generator("batches").seed()
        with torch.no_grad():
            for parameter in client.net.parameters():
                parameter.zero_()
        return {}

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """Run the frozen references."""
        client.reference("received", step.batch)
        client.reference("initial", step.batch)
        return None


def looking_leaves_no_trace(method: str | Method) -> None:
    """Probes and frozen references change no bit of the run."""
    _, whole = configure(method, tiny_scenario(**granting(method)))
    require_same(
        reference(whole), play(begin(whole.plus(IntrusivePart()))), "without and with a probe"
    )


def evaluation_leaves_no_trace(method: str | Method) -> None:
    """Scoring is deterministic, and how often a run scores changes no tensor."""
    often, seldom = play(begin(method)), play(begin(method, evaluate_every=3))
    a, b = everything(often), everything(seldom)
    assert all(torch.equal(a[k], b[k]) for k in a), "scoring changed the run"
    args = (often.server, often.transport, often.federation, often.record)
    assert evaluate(*args) == evaluate(*args), "two evaluations differ"


# The comment above each clause says what kind of bug it catches.
CONTRACT: tuple[Callable[[str | Method], None], ...] = (
    # a loss that diverges, or one that is identically zero and trains nothing
    finite_and_moving,
    # a client that writes into tensors of the server, or a payload that is no tensor
    in_process_equals_bytes,
    # state on a part, in a global or in the process instead of in client.state
    in_process_equals_pool,
    # the same on real machines: a site keeps only its own state, and the server only messages
    in_process_equals_flower,
    # a private entry sent by mistake, also under another name
    private_stays_private,
    # a result that depends on a client's position, on a shared generator or on the first reply
    order_is_irrelevant,
    # a draw from a global generator, or a seed that is ignored
    seed_decides,
    # state that a checkpoint lacks, or that half a round has already changed
    resumes_exactly,
    # BatchNorm statistics, generators or modes that measuring the model has changed
    looking_leaves_no_trace,
    # a prediction that is random, or scoring that trains
    evaluation_leaves_no_trace,
)


@dataclass(frozen=True)
class Verdict:
    """The result of one clause for one method."""

    clause: str
    promise: str
    failure: str  # why it is broken; empty if it is kept
    skipped: str = ""  # why it was not run


def check_contract(method: str | Method) -> list[Verdict]:
    """Run every clause on one thread: kept, broken with the reason, or skipped."""
    out = []
    with one_thread():
        for clause in CONTRACT:
            promise = (clause.__doc__ or "").strip()
            try:
                clause(method)
            except AssertionError as error:
                out.append(Verdict(clause.__name__, promise, str(error) or "broken"))
            except SkipTest as reason:
                out.append(Verdict(clause.__name__, promise, "", str(reason)))
            else:
                out.append(Verdict(clause.__name__, promise, ""))
    return out
