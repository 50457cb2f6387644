"""A run under way: everything before round 1, then one committed round after another.

``experiment.run`` and deployments prepare sessions and run them to the end; the contract suite
advances them round by round. A session must never decide what a round computes, which is up to
``engine.round``, and must never begin a round before the last one is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedshift.base.errors import RunError
from fedshift.base.process import cores
from fedshift.core.analysis import analysis
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Update
from fedshift.core.method import Method
from fedshift.core.server import Policy, Server, Transport
from fedshift.data.federation import Federation
from fedshift.engine.build import Plan, allowed_data, build_net
from fedshift.engine.compute import Compute
from fedshift.engine.federation import describe_split, federate_for, input_preparation
from fedshift.engine.preflight import check_data, check_needs, check_policy, check_protection
from fedshift.engine.replies import attached
from fedshift.engine.round import enrol, open_server, play_round
from fedshift.evaluate.protocols import (
    Scored,
    at_server,
    at_sites,
    evaluate,
    from_sites,
    require_a_score,
)
from fedshift.experiment.expectation import Estimate, expect
from fedshift.experiment.identity import require_same_data
from fedshift.experiment.listener import Listener
from fedshift.report.results import RunResult
from fedshift.runs.begun import read_compute
from fedshift.runs.best import keep_preparation
from fedshift.runs.record import Record, Row
from fedshift.runs.spending import Spending
from fedshift.runs.summary import summarise
from fedshift.runs.what_left import preparation_line
from fedshift.transports import TRANSPORTS


@dataclass(frozen=True)
class Options:
    """How a run is executed, as opposed to what it computes.

    No option changes a result, up to rounding by ``compute``, as long as every site replies.
    """

    resume: bool = False
    transport: str | Callable[[Plan], Transport] = "inprocess"  # a name, or a function
    listener: Listener = field(default_factory=Listener)
    workers: int | None = None  # of the pool; None: one per core
    policy: Policy = field(default_factory=Policy)  # what to do when a site is lost
    compute: Compute = field(default_factory=Compute)


@runtime_checkable
class Piggybacks(Protocol):
    """A transport that can attach scoring requests to training messages.

    Messages are expensive on such a transport, so evaluation is piggybacked on the next training
    message: a round's scoring at the sites takes no exchange of its own.
    """

    def attach(self, messages: Sequence[Broadcast]) -> None:
        """Attach messages to the next training messages of their clients."""
        ...

    def attached_replies(self) -> list[Update]:
        """The replies to them; call it once the training messages are answered."""
        ...


@dataclass
class Session:
    """Server, transport, data and record of a run under way."""

    server: Server
    transport: Transport
    federation: Federation
    record: Record
    listener: Listener
    split: str = ""  # where train, validation and test rows come from; empty: the sites know

    def advance(self) -> Row:
        """Run, score and commit one round; returns its row of the metrics.

        Rounds are scored every ``evaluate_every`` rounds, and the last one always.

        The order of a round must hold: train and aggregate, account for privacy, score, keep the
        model if it is the best so far, and last commit. The commit (``Record.commit``) makes the
        round final; a process killed before it repeats the whole round when it is resumed.

        Where scoring is piggybacked, the row of round t cannot be complete when round t ends.
        Protocols scored at the server are in it, and it is committed as postponed. In round t + 1
        the sites score the model of round t, which the server sends with the attached requests,
        before they train; then the row is completed and enters the metrics. The last round has no
        successor, so it is always scored at once.
        """
        server, scenario = self.server, self.server.scenario
        began = time.perf_counter()
        if self.record.spending is not None:
            self.record.spending.begin(server.round + 1)
        updates = self._play()
        row: Row = {
            "round": server.round,
            "losses": mean_losses(updates),
            "steps": sum(update.steps for update in updates),
        }
        if server.capped:
            row["capped"] = dict(sorted(server.capped.items()))
            self.record.note_capped(server.round, server.capped, scenario.max_weight or 1.0)
        if promises := privacy_so_far(server, self.record):
            row["privacy"] = promises
        row["seconds"] = time.perf_counter() - began
        row["seconds_waited"] = self.record.waits.take()
        piggybacked = False
        if server.round % scenario.evaluate_every == 0 or server.round == scenario.rounds:
            piggybacked = self._piggybacks()
            score = at_server if piggybacked else evaluate
            scored = score(server, self.transport, self.federation, self.record)
            row["scores"] = as_json(scored)
            for name in scenario.analyses:
                row[name] = analysis(name).measure(server, updates, self.federation)
            if missing := self.record.unscored(server.round):
                row["unscored"] = missing
        row["seconds_scoring"] = time.perf_counter() - began - row["seconds"]
        if piggybacked:
            self.record.postpone(server, row)
        else:
            scoring = server.method.send_scoring(server, None)
            self.record.keep_best(server.shared, scoring, row)
            self.record.commit(server, row)
        return row

    def _piggybacks(self) -> bool:
        """Whether scoring at the sites can wait for the training messages of the next round."""
        last = self.server.round == self.server.scenario.rounds
        return isinstance(self.transport, Piggybacks) and bool(at_sites(self.server)) and not last

    def _play(self) -> list[Update]:
        """Run one round; if the last row is postponed, attach its scoring and complete the row.

        The requests and ``model`` are taken before the round replaces ``server.shared``, so it is
        the model of the last round that is scored and, if it is the best, kept.
        """
        server, record, row = self.server, self.record, self.record.pending
        if row is None or not isinstance(self.transport, Piggybacks):
            return play_round(server, self.transport, record)
        tasks, model = [*dict.fromkeys(at_sites(server).values())], server.shared
        scoring = server.method.send_scoring(server, None)
        messages = [server.broadcast(task, c) for c in sorted(server.roster) for task in tasks]
        self.transport.attach(messages)
        updates = play_round(server, self.transport, record)
        answers = attached(server, messages, self.transport.attached_replies(), record)
        if missing := record.unscored(row["round"]):
            row["unscored"] = missing
        for task in tasks:
            scored = [u for u in answers if u.task == task]
            row["scores"] |= as_json(from_sites(server, task, scored, self.federation))
        order = [p for p in server.scenario.protocols if p in row["scores"]]
        row["scores"] = {name: row["scores"][name] for name in order}
        record.keep_best(model, scoring, row)
        record.complete_pending()
        return updates


def as_json(scored: Scored) -> Row:
    """Scores in the form of a row of the metrics."""
    return {p: {s: m.to_json() for s, m in v.items()} for p, v in scored.items()}


def prepare(
    config: RunConfig,
    method: Method,
    path: Path | None = None,
    options: Options | None = None,
    federation: Federation | None = None,
) -> Session:
    """Everything before round 1: data, net, checks, then the last checkpoint or the enrolment.

    Every check comes before the transport is opened, so no worker process is started and no message
    sent for a run that must fail. A run that is resumed keeps the compute settings it began with,
    whatever ``options`` say.

    ``federation`` is given when the data are at remote sites, which have checked them.
    """
    options = options or Options()
    scenario = config.scenario
    if federation is None:
        require_same_data(config)
    known = federation or federate_for(method, scenario, config.seed)
    check_needs(method, scenario, len(known.sites))
    check_policy(method, options.policy)
    net = build_net(config, method, known)
    require_a_score(config.label, method, scenario, net)
    if federation is None:
        check_data(known, scenario, net)
    compute = (read_compute(path) or options.compute).decided(net, scenario.batch_size)
    known, net = known.to(compute.device), compute.move(net)
    record = Record(config, path, options.listener.replied, options.listener.lost)
    record.create(compute)
    record.describe_model(known.shape, known.classes)
    if federation is None:
        note_preparation(record, input_preparation(scenario, known), method)
    resources = allowed_data(known, scenario, "server")
    server = open_server(method, scenario, config.seed, net, resources, record.personal)
    server.sites, server.policy = tuple(known.sites), options.policy
    check_protection(server)
    workers = workers_for(options, server, known)
    plan = Plan(config, method, known, record.store, workers, options.policy, compute)
    if any(channel.gives_privacy for channel in method.channels):
        record.spending = Spending(path)
    transport = open_transport(options.transport, plan)
    restore_or_enrol(server, transport, record, known.sites if federation is None else None)
    split = describe_split(scenario) if federation is None else ""
    return Session(server, transport, known, record, options.listener, split)


def note_preparation(record: Record, prepared: Mapping[str, Any], method: Method) -> None:
    """Keep how raw data became inputs, and add to the ledger what each site told for that.

    A resumed run replaces these lines by its own ledger. Where several clients share the data of
    one site, the line is the site's.
    """
    if record.path is not None:
        keep_preparation(record.path, prepared)
    table, domains = prepared.get("table", {}), prepared.get("domains", {})
    if any(row["task"] == "preparation" for row in record.ledger):
        return
    for site, size in table.get("told", {}).items():
        holders = [client for client, domain in domains.items() if domain == site]
        client = holders[0] if len(holders) == 1 else site
        private = [f"not covered by {p.name}" for p in method.parts if p.gives_privacy]
        record.ledger.append(
            preparation_line(client, size, "; ".join([*table["leaves"], *private]))
        )


def restore_or_enrol(
    server: Server, transport: Transport, record: Record, known: Collection[str] | None
) -> None:
    """Load the last checkpoint into ``server``, or enrol its sites; a failure closes the transport.

    ``known`` are the clients that a simulated run has; a roster with others is damaged.
    """
    try:
        if not record.restore(server):
            enrol(server, transport, server.sites, record)
        elif known is not None and (odd := sorted(server.roster.keys() - set(known))):
            raise RunError(
                f"the roster in {record.path} names client {odd[0]!r}, which this run does not "
                "have; restore it, or delete the run and repeat it"
            )
    except BaseException:
        transport.close()  # or its processes and temporary files would stay
        raise


def open_transport(which: str | Callable[[Plan], Transport], plan: Plan) -> Transport:
    """The transport of that name, or what ``which`` opens; ``auto`` is a pool if workers > 1."""
    if callable(which):
        return which(plan)
    best = "pool" if plan.workers > 1 else "inprocess"
    return TRANSPORTS[best if which == "auto" else which](plan)


def workers_for(options: Options, server: Server, federation: Federation) -> int:
    """Worker processes: as requested or one per core, at most one per client of a round."""
    cohort = server.scenario.cohort_size(len(federation.sites))
    return min(options.workers or cores(), cohort)


def play(session: Session, complete: Callable[[RunResult], None] | None = None) -> RunResult:
    """Run all remaining rounds, each committed before the next, then write the summary.

    ``complete`` adds files of the result to the run directory. It is called before the summary is
    written: a run that has one is done, and nothing is ever added to it.
    """
    server, record, listener = session.server, session.record, session.listener
    config = record.config
    first = server.round + 1
    listener.started(config, len(server.roster), first)
    while server.round < config.scenario.rounds:
        row = session.advance()
        listener.round_done(row)
        if first == 1 and server.round == config.scenario.evaluate_every:
            listener.expected(_expected(session, row))
    summary = summarise(config, record.metrics, **_facts(session))
    result = RunResult(config, record.metrics, summary, record.path)
    if complete is not None:
        complete(result)
    record.finish(server, summary)
    listener.finished(result)
    return result


def _expected(session: Session, row: Row) -> Estimate:
    """What the run takes in all, from the rounds up to the first that is scored."""
    spent = sum(r["seconds"] for r in session.record.metrics)
    return expect(
        session.record.config,
        session.server,
        session.record,
        session.federation,
        training=spent / session.server.round,
        scoring=row["seconds_scoring"],
    )


def _facts(session: Session) -> Row:
    """What a summary holds besides scores: clients, parameters, traffic, time, losses, privacy."""
    server, record = session.server, session.record
    split = {"split": session.split} if session.split else {}
    images = len(session.federation.shape) == 3
    return {
        "confounders": server.scenario.confounders(images=images) | split,
        "samples": count_samples(session.federation, server.scenario.unseen),
        "classes": list(session.federation.classes),
        "clients": len(server.roster),
        "parameters": sum(p.numel() for p in server.net.parameters()),
        "shares": {d.name: d.shares for d in server.method.declared if d.shares},
        "bytes": {"train": record.traffic("train"), "total": record.traffic()},
        "seconds": sum(row["seconds"] for row in record.metrics),
        "lost": record.losses(),
        **({"capped": capped} if (capped := record.book.capped()) else {}),
    } | ({"privacy": record.metrics[-1]["privacy"]} if "privacy" in record.metrics[-1] else {})


def count_samples(federation: Federation, unseen: str | None) -> dict[str, dict[str, int]]:
    """Training, validation and test samples of each domain, as far as they are known here."""
    domains = dict(federation.domains)
    if unseen and federation.unseen is not None:
        domains[unseen] = federation.unseen
    return {
        name: {part: len(getattr(splits, part)) for part in ("train", "val", "test")}
        for name, splits in domains.items()
    }


def privacy_so_far(server: Server, record: Record) -> dict[str, Row]:
    """What each privacy part guarantees after this round; also added to the ledger."""
    out: dict[str, Row] = {}
    if record.spending is not None:
        secret = server.cohort_secret is not None
        record.spending.close(
            server.round, sites=len(server.roster), replied=server.participants, secret=secret
        )
        server.spent = record.spending.rounds(server.round)
    for part in server.method.channels:
        if part.gives_privacy:
            out[part.name] = dict(part.privacy_spent(server, record.visits()))
            record.note_privacy(server.round, part.name, out[part.name])
    return out


def mean_losses(updates: Sequence[Update]) -> dict[str, float]:
    """Each loss term averaged over the clients that report it."""
    names = dict.fromkeys(name for u in updates for name in u.metrics)
    return {
        name: sum(values) / len(values)
        for name in names
        if (values := [u.metrics[name] for u in updates if name in u.metrics])
    }
