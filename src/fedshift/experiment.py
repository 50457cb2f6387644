"""From words to results: one run, and many side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedshift.build import Plan, build_net, granted
from fedshift.check import check_data, check_needs, check_policy
from fedshift.compute import Compute
from fedshift.data.federation import Federation, datasets, federate, load
from fedshift.data.splits import Random
from fedshift.errors import ConfigError, RunError, UnknownNameError
from fedshift.evaluate.group_effect import group_effect
from fedshift.evaluate.protocols import Scored, at_server, at_sites, evaluate, personal
from fedshift.faults import Policy, riders
from fedshift.machine import cores, one_thread
from fedshift.message import Broadcast, Lost, Update
from fedshift.method import Method
from fedshift.privacy.check import check_protection
from fedshift.registry import SCENARIOS
from fedshift.results import RunResult, comparable, summarise
from fedshift.runs.config import RunConfig, configure
from fedshift.runs.files import only_writer
from fedshift.runs.record import (
    Record,
    Row,
    read_compute,
    read_config,
    read_lines,
    read_summary,
)
from fedshift.scenario import Scenario
from fedshift.server import Server, Transport, enrol, open_server, play_round
from fedshift.transports import TRANSPORTS
from fedshift.tree import Tree


class Listener:
    """Hears what a run does; the default is silent."""

    def started(self, config: RunConfig, clients: int, first_round: int) -> None:
        """Before the first round that is played."""

    def replied(self, update: Update) -> None:
        """A client has answered."""

    def lost(self, lost: Lost) -> None:
        """A client has not answered, or its answer was refused."""

    def round_done(self, row: Row) -> None:
        """A round is on disk."""

    def finished(self, result: RunResult) -> None:
        """The summary is on disk."""


def find_scenario(name: str | Scenario, *, scale: str | None = None, **changes: Any) -> Scenario:
    """A scenario by name, with other values where given (None leaves a value alone).

    ``scale`` is ``laptop`` (default) or ``paper``, for the scenarios of papers. A dataset's name is
    a scenario too: one client per domain.
    """
    base = name if isinstance(name, Scenario) else named_scenario(name, scale)
    return base.change(**{k: v for k, v in changes.items() if v is not None})


def named_scenario(name: str, scale: str | None) -> Scenario:
    """A registered scenario, or the plain one of a dataset: one client per domain, 80/10/10."""
    if name not in SCENARIOS.entries() and name in datasets():
        stores = load(name)
        images = next(iter(stores.values())).x.dim() == 4
        return Scenario(
            name=name,
            data=name,
            domains=tuple(stores),
            split=Random(),
            backbone="cnn" if images else "mlp",
        )
    entry = SCENARIOS.get(name)
    if scale and "scale" not in entry.options:
        raise ConfigError(f"scenario {name!r} comes in one scale; leave out --scale {scale}")
    return entry.build(**({"scale": scale} if scale else {}))


def run(  # noqa: PLR0913  the whole of a run, by keyword
    method: str | Method,
    scenario: str | Scenario = "digits",
    *,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    without: Sequence[str] = (),
    out: Path | str | None = None,
    resume: bool = False,
    transport: str = "inprocess",
    workers: int | None = None,
    compute: Compute | None = None,
    listener: Listener | None = None,
    policy: Policy | None = None,
    **changes: Any,
) -> RunResult:
    """Train one method in one scenario and score it.

    Args:
        method: an expression such as ``"fedavg + mixup"``, or a :class:`Method`.
        scenario: a scenario's name, or a :class:`Scenario`.
        seed: of initialisation, partition, cohorts and batches.
        settings: hyper-parameters of the method, ``{"mu": 0.1}``.
        without: parts to leave out.
        out: the run directory; None keeps everything in memory.
        resume: continue an unfinished run in ``out``.
        transport: ``inprocess``, ``pool`` (worker processes, the same numbers; a script that
            defines parts or data of its own needs the usual ``if __name__ == "__main__"``),
            ``auto`` (a pool if it has two workers) or ``wire`` (for tests).
        workers: processes of the pool; None takes one per core.
        compute: device, memory layout and compilation; by default the processor.
        listener: hears of progress.
        policy: what to do when a site is lost, ``Policy(on_loss="skip", min_sites=3)``.
        **changes: other values of the scenario, ``rounds=10, lr=0.1``.
    """
    config, whole = configure(
        method,
        find_scenario(scenario, **changes),
        seed=seed,
        settings=settings,
        without=tuple(without),
    )
    path = Path(out) if out is not None else None
    options = Options(
        resume,
        transport,
        listener or Listener(),
        workers,
        policy or Policy(),
        compute or Compute(),
    )
    return execute(config, whole, path, options)


@dataclass(frozen=True)
class Options:
    """How a run is played; none of it moves a number as long as every site answers."""

    resume: bool = False
    transport: str | Callable[[Plan], Transport] = "inprocess"  # a name, or what opens one
    listener: Listener = field(default_factory=Listener)
    workers: int | None = None  # of the pool; None: one per core
    policy: Policy = field(default_factory=Policy)  # what to do when a site is lost
    compute: Compute = field(default_factory=Compute)


def execute(
    config: RunConfig, method: Method, path: Path | None, options: Options | None = None
) -> RunResult:
    """Play a configured run; what is already finished in ``path`` is read, not played again."""
    options = options or Options()
    if isinstance(options.transport, str) and options.transport not in {*TRANSPORTS, "auto"}:
        raise UnknownNameError.of("transport", options.transport, {*TRANSPORTS, "auto"})
    if path is not None and (done := finished(config, path, resume=options.resume)):
        return done
    with one_thread(), only_writer(path) if path is not None else nullcontext():
        session = prepare(config, method, path, options)
        try:
            return play(session)
        finally:
            session.transport.close()


@runtime_checkable
class Encloses(Protocol):
    """A transport whose letters cost more than what they carry: scoring rides with training."""

    def enclose(self, mail: Sequence[Broadcast]) -> None:
        """Put messages to the next training mail of their clients."""
        ...

    def enclosed(self) -> list[Update]:
        """The replies to them, once the training mail is answered."""
        ...


@dataclass
class Session:
    """A run under way: both sides, the mail between them, and its record."""

    server: Server
    transport: Transport
    federation: Federation
    record: Record
    listener: Listener

    def advance(self) -> Row:
        """Play and commit one round; evaluates when the scenario says so.

        Where scoring rides with training, the sites score a round's model when they receive it in
        the next one; the row is in the metrics from then on.
        """
        server, place = self.server, self.server.scenario
        began = time.perf_counter()
        updates = self._play()
        row: Row = {"round": server.round, "losses": mean_losses(updates)}
        if promises := guarantees(server, self.record):
            row["privacy"] = promises
        row["seconds"] = time.perf_counter() - began
        rides = False
        if server.round % place.evaluate_every == 0 or server.round == place.rounds:
            rides = self._rides()
            score = at_server if rides else evaluate
            scored = score(server, self.transport, self.federation, self.record)
            row["scores"] = as_json(scored)
            if "group-effect" in place.analyses:
                row["group-effect"] = group_effect(server, updates, self.federation)
            if missing := self.record.unscored(server.round):
                row["unscored"] = missing
        row["seconds_scoring"] = time.perf_counter() - began - row["seconds"]
        if rides:
            self.record.postpone(server, row)
        else:
            keep_best(server.shared, self.record, row)
            self.record.commit(server, row)
        return row

    def _rides(self) -> bool:
        """Whether the sites' share of this round's scoring goes with the next round's training."""
        last = self.server.round == self.server.scenario.rounds
        return isinstance(self.transport, Encloses) and bool(at_sites(self.server)) and not last

    def _play(self) -> list[Update]:
        """One round; scoring that is due rides with it, and its row is completed."""
        server, record, row = self.server, self.record, self.record.pending
        if row is None or not isinstance(self.transport, Encloses):
            return play_round(server, self.transport, record)
        tasks, model = at_sites(server), server.shared
        mail = [server.mail(task, c) for c in sorted(server.roster) for task in tasks.values()]
        self.transport.enclose(mail)
        updates = play_round(server, self.transport, record)
        answers = riders(server, mail, self.transport.enclosed(), record)
        if missing := record.unscored(row["round"]):
            row["unscored"] = missing
        for name, task in tasks.items():
            counted = personal([u for u in answers if u.task == task], self.federation)
            row["scores"] |= as_json({name: counted})
        order = [p for p in server.scenario.protocols if p in row["scores"]]
        row["scores"] = {name: row["scores"][name] for name in order}
        keep_best(model, record, row)
        record.settle()
        return updates


def as_json(scored: Scored) -> Row:
    """Scores as a row of the metrics holds them."""
    return {p: {s: m.to_json() for s, m in v.items()} for p, v in scored.items()}


def prepare(
    config: RunConfig,
    method: Method,
    path: Path | None = None,
    options: Options | None = None,
    federation: Federation | None = None,
) -> Session:
    """Everything up to round 1: data, nets, checks, and the last checkpoint or the enrolment.

    ``federation`` is given where the data are elsewhere; the sites have checked them there.
    """
    options = options or Options()
    place = config.scenario
    known = federation or federate(place, config.seed)
    check_needs(method, place, len(known.sites))
    check_policy(method, options.policy)
    net = build_net(config, method, known)
    if federation is None:
        check_data(known, place, net)
    compute = (read_compute(path) or options.compute).decided(net, place.batch_size)
    known, net = known.to(compute.device), compute.place(net)
    record = Record(config, path, options.listener.replied, options.listener.lost)
    record.create(compute)
    resources = granted(known, place, "server")
    server = open_server(method, place, config.seed, net, resources, record.personal)
    server.sites, server.policy = tuple(known.sites), options.policy
    check_protection(server)
    workers = workers_for(options, server, known)
    plan = Plan(config, method, known, record.store, workers, options.policy, compute)
    transport = open_transport(options.transport, plan)
    if not record.restore(server):
        enrol(server, transport, known.sites, record)
    return Session(server, transport, known, record, options.listener)


def open_transport(which: str | Callable[[Plan], Transport], plan: Plan) -> Transport:
    """The transport by name, or by what opens it; ``auto`` is a pool if it has two workers."""
    if callable(which):
        return which(plan)
    best = "pool" if plan.workers > 1 else "inprocess"
    return TRANSPORTS[best if which == "auto" else which](plan)


def workers_for(options: Options, server: Server, federation: Federation) -> int:
    """As many processes as asked for, or as there are cores, and no more than clients at a time."""
    cohort = server.scenario.cohort_size(len(federation.sites))
    return min(options.workers or cores(), cohort)


def play(session: Session) -> RunResult:
    """Rounds until the last, each committed before the next, then the summary."""
    server, record, listener = session.server, session.record, session.listener
    config = record.config
    listener.started(config, len(server.roster), server.round + 1)
    while server.round < config.scenario.rounds:
        listener.round_done(session.advance())
    summary = summarise(config, record.metrics, **_facts(server, record))
    record.finish(server, summary)
    result = RunResult(config, record.metrics, summary, record.path)
    listener.finished(result)
    return result


def _facts(server: Server, record: Record) -> Row:
    """What a summary says beside the numbers."""
    return {
        "clients": len(server.roster),
        "parameters": sum(p.numel() for p in server.net.parameters()),
        "shares": {d.name: d.shares for d in server.method.declared if d.shares},
        "bytes": {"train": record.traffic("train"), "total": record.traffic()},
        "seconds": sum(row["seconds"] for row in record.metrics),
        "lost": record.losses(),
    } | ({"privacy": record.metrics[-1]["privacy"]} if "privacy" in record.metrics[-1] else {})


def guarantees(server: Server, record: Record) -> dict[str, Row]:
    """What the parts that protect a site have promised so far; noted in the ledger."""
    out: dict[str, Row] = {}
    for part in server.method.parts:
        if part.protects:
            out[part.name] = dict(part.guarantee(server, record.visits()))
            record.guaranteed(server.round, part.name, out[part.name])
    return out


def keep_best(model: Tree, record: Record, row: Row) -> None:
    """Keep the model if no earlier round validates better under the first protocol."""
    scores: Callable[[Row], float] = lambda r: r["scores"][name]["val"]["avg"]  # noqa: E731
    name = next(iter(row.get("scores", {})), None)
    if name is None:
        return
    earlier = [scores(r) for r in comparable([r for r in record.metrics if r.get("scores")])]
    if earlier and row.get("unscored"):
        return
    if not earlier or scores(row) > max(earlier):
        record.keep_best(model, row["round"])


def mean_losses(updates: Sequence[Update]) -> dict[str, float]:
    """Each loss term averaged over the clients that have it."""
    names = dict.fromkeys(name for u in updates for name in u.metrics)
    return {
        name: sum(values) / len(values)
        for name in names
        if (values := [u.metrics[name] for u in updates if name in u.metrics])
    }


def finished(config: RunConfig, path: Path, *, resume: bool) -> RunResult | None:
    """The result in ``path`` if that run is done; an error if the folder holds something else."""
    if not path.exists() or not any(path.iterdir()):
        return None
    if not (path / "config.json").exists():
        raise RunError(f"{path} is not empty and holds no run; choose another --out")
    held = read_config(path)
    if held.fingerprint != config.fingerprint:
        raise RunError(f"{path} holds another run, {held.name}; choose another --out")
    if summary := read_summary(path):
        return RunResult(held, read_lines(path / "metrics.jsonl"), summary, path)
    if not resume:
        rows = read_lines(path / "metrics.jsonl")
        raise RunError(
            f"{path} holds this run, unfinished after round {rows[-1]['round'] if rows else 0} of "
            f"{config.scenario.rounds}; add --resume to continue it"
        )
    return None


def load_result(path: Path) -> RunResult:
    """A finished run from its directory."""
    config = read_config(path)
    summary = read_summary(path)
    if summary is None:
        raise RunError(
            f"{path} is not finished; continue it with fedshift run --resume --out {path}"
        )
    return RunResult(config, read_lines(path / "metrics.jsonl"), summary, path)
