"""What Flower's transport does beyond the contract's \"same bits\": nodes, failures, letters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fedshift
from fedshift.base.errors import ConfigError, DivergedError, RunError
from fedshift.core.config import configure
from fedshift.core.message import Broadcast
from fedshift.core.server import Policy
from fedshift.experiment.session import Options, prepare
from fedshift.testing import play, require_same, start, tiny_scenario, worker
from fedshift.transports.flower.envelope import Envelope, to_envelope
from fedshift.transports.flower.site import Header, SiteHandler, error_from_site, error_line, named
from fedshift.transports.flower.transport import FlowerTransport, SiteReply, Timeouts, read

CLIENTS = ["dark-0", "dark-1", "bright-0", "bright-1"]
SKIP = Policy(on_loss="skip")
HASTY = Timeouts(connect=0.0, reply=0.0, poll=0.0)


class Office:
    """A post without Flower: desks by node, replies in the order of ``turn``."""

    def __init__(self, handler, clients, turn=sorted):
        self.handler, self.turn = handler, turn
        self.at = {100 + i: client for i, client in enumerate(clients)}
        self.sent, self.waiting, self.silent = [], {}, set()

    def nodes(self):
        return set(self.at)

    def send(self, requests):
        tickets = [str(len(self.sent) + i) for i in range(len(requests))]
        self.sent += requests
        self.waiting |= dict(zip(tickets, requests, strict=True))
        return tickets

    def fetch(self, tickets):
        due = [t for t in self.turn(tickets) if self.at[self.waiting[t].node] not in self.silent]
        return [self.reply(ticket, self.waiting.pop(ticket)) for ticket in due[:1]]

    def reply(self, ticket, request):
        node = {"client": self.at[request.node]}
        try:
            if request.kind == "query.whoami":
                return SiteReply(ticket, self.handler.introduce(request.header, node))
            return SiteReply(ticket, self.handler.answer(request.header, request.envelope, node))
        except Exception as error:
            return SiteReply(ticket, None, error_line(error))


@pytest.fixture
def opened():
    """A session whose mail goes through an office, and the office."""

    def build(
        method="fedavg",
        clients=CLIENTS,
        timeouts=None,
        turn=sorted,
        path=None,
        policy=Policy(),  # noqa: B008  frozen
        **changes,
    ):
        offices = []

        def connect(plan):
            site = plan.worker()
            offices.append(Office(SiteHandler(lambda run, node: site), clients, turn))
            return FlowerTransport(
                offices[0], plan.config, store=plan.store, timeouts=timeouts, policy=plan.policy
            )

        config, whole = configure(method, tiny_scenario(**changes))
        options = Options(transport=connect, policy=policy)
        return prepare(config, whole, path, options), offices[0]

    return build


def test_nodes_are_known_by_what_they_say_and_replies_may_come_in_any_order(opened):
    backwards = lambda tickets: sorted(tickets, reverse=True)  # noqa: E731
    session, _ = opened("scaffold", clients=CLIENTS[::-1], turn=backwards)
    require_same(play(start("scaffold")), play(session), "in process and an odd office")


def test_each_node_is_asked_once_and_a_site_that_returns_is_asked_again(opened):
    session, office = opened("fedbn")
    asked = [request.node for request in office.sent if request.kind == "query.whoami"]
    assert sorted(asked) == sorted(office.at)
    play(session, 1)
    office.at[7] = office.at.pop(100)  # restarted: another node, the same site
    play(session)
    asked = [request.node for request in office.sent if request.kind == "query.whoami"]
    assert sorted(asked) == sorted([*range(100, 104), 7])
    require_same(play(start("fedbn")), session, "with and without a restart")


def test_two_sites_of_one_name_are_refused(opened):
    with pytest.raises(RunError, match=r"two sites call themselves 'dark-0'"):
        opened(clients=["dark-0", *CLIENTS])


def test_a_site_that_never_connects_is_named(opened):
    with pytest.raises(RunError, match=r"no site called bright-1 .*connected: bright-0, dark-0"):
        opened(clients=CLIENTS[:3], timeouts=HASTY)


def test_a_site_may_connect_late(opened):
    class Late(Office):
        looks = 0

        def nodes(self):
            self.looks += 1
            return super().nodes() - ({103} if self.looks < 3 else set())

    session, office = opened()
    late = Late(office.handler, CLIENTS)
    transport = FlowerTransport(late, session.record.config, timeouts=Timeouts(poll=0.0))
    assert transport.find(CLIENTS)["bright-1"] == 103
    assert late.looks == 3


def test_a_silent_site_is_named_after_its_time(opened):
    session, office = opened()
    office.silent = {"dark-1"}
    session.transport.timeouts = HASTY
    with pytest.raises(RunError, match=r"site dark-1 failed: did not answer within 0 s"):
        play(session, 1)


def test_a_round_goes_on_without_a_site_that_is_silent_and_with_it_when_it_answers_again(opened):
    session, office = opened(policy=SKIP)
    office.silent, session.transport.timeouts = {"dark-1"}, HASTY
    play(session, 1)
    losses = session.record.losses()
    assert set(losses) == {"dark-1"}
    assert "did not answer within 0 s" in losses["dark-1"][0]["reason"]
    office.silent = set()
    session.transport.timeouts = Timeouts(poll=0.0)
    play(session, 1)
    assert {u["round"] for u in session.record.losses()["dark-1"]} == {1}


def test_nobody_waits_twice_for_a_site_that_is_not_there(opened):
    session, office = opened(policy=SKIP)
    node = next(n for n, client in office.at.items() if client == "dark-1")
    del office.at[node]
    session.transport.timeouts = Timeouts(connect=0.3, poll=0.01)
    began = time.monotonic()
    session.transport.find(CLIENTS)
    assert time.monotonic() - began > 0.3
    began = time.monotonic()
    session.transport.find(CLIENTS)
    assert time.monotonic() - began < 0.2
    play(session, 1)
    assert {r["reason"] for r in session.record.losses()["dark-1"]} == {"it is not connected"}
    office.at[node] = "dark-1"
    play(session, 1)
    assert {r["round"] for r in session.record.losses()["dark-1"]} == {1}


def test_attached_scores_are_checked_and_a_lost_one_marks_the_round(opened):
    session, office = opened(policy=SKIP, protocols=("personal",), rounds=2)
    real = office.handler.answer

    def forged(header, envelope, node):
        found = real(header, envelope, node)
        if node["client"] != "dark-1":
            return found
        return Envelope(found.text.replace('"test/accuracy"', '"test/wrong"'), found.blocks)

    play(session, 1)
    assert session.record.pending is not None
    office.handler = SimpleNamespace(answer=forged, introduce=office.handler.introduce)
    play(session, 1)
    first = session.record.metrics[0]
    assert first["unscored"] == ["dark-1"]
    reasons = [r["reason"] for r in session.record.losses()["dark-1"] if r["task"] == "score"]
    assert any("test: accuracy is missing" in reason for reason in reasons)


def test_a_lost_score_ends_a_run_without_a_policy(opened):
    session, _ = opened(protocols=("personal",), rounds=2)
    play(session, 1)
    kept = session.transport.attached_replies
    session.transport.attached_replies = lambda: kept()[1:]
    with pytest.raises(RunError, match="is lost: no answer"):
        play(session, 1)


def test_a_divergence_at_a_site_is_the_same_error_as_here(opened):
    with pytest.raises(DivergedError) as here:
        play(start("fedavg", lr=1e20))
    session, _ = opened(lr=1e20, turn=lambda tickets: sorted(tickets, key=int, reverse=True))
    with pytest.raises(DivergedError) as there:
        play(session)
    assert str(here.value) == str(there.value)


def test_any_other_error_is_one_line_that_names_the_site():
    reason = error_line(ZeroDivisionError("in\n  two lines"))
    error = error_from_site("berlin", reason)
    assert type(error) is RunError
    assert str(error) == "site berlin failed: ZeroDivisionError: in two lines"
    assert str(error_from_site("berlin", "ConfigError: no disk")) == "site berlin: no disk"
    assert type(error_from_site("berlin", "OSError: no disk")) is RunError


def messages(client="dark-0", task="score", round_=0):
    return Broadcast(client, task, round_)


def test_what_is_said_to_one_site_goes_in_one_letter(opened):
    session, office = opened(private_at_new_site="mean")
    shared = session.server.shared
    before = len(office.sent)
    wanted = [
        Broadcast(client, task, 0, shared)
        for task in ("score", "assess", "donate")
        for client in ("dark-0", "bright-0")
    ]
    found = {(u.client, u.task): u for u in session.transport.deliver(wanted)}
    assert len(office.sent) - before == 2
    alone = worker(start("fedavg", private_at_new_site="mean"))
    for message in wanted:
        assert found[message.client, message.task] == alone.visit(message)


def test_an_update_outlives_the_visits_that_share_its_letter(opened):
    session, _ = opened()
    shared = session.server.shared
    other = {k: torch.zeros_like(v) for k, v in shared.items()}
    train = Broadcast("dark-0", "train", 1, shared)
    found = list(session.transport.deliver([train, Broadcast("dark-0", "assess", 1, other)]))
    update = next(u for u in found if u.task == "train")
    alone = worker(start("fedavg")).visit(train)
    assert all(torch.equal(update.shared[k], v) for k, v in alone.shared.items())


def test_training_is_a_train_message_and_the_rest_are_queries(opened):
    session, office = opened()
    play(session, 2)  # in the second, scoring rides along
    tasks = {}
    for request in office.sent:
        if request.envelope.text:
            rows = json.loads(request.envelope.text)["messages"]
            tasks.setdefault(request.kind, set()).update(row["scalars"]["task"] for row in rows)
    assert tasks["train"] >= {"train"}
    assert tasks["query"] >= {"enrol"}
    assert "train" not in tasks["query"]


def test_a_reply_to_something_else_is_refused():
    site = worker(start("fedavg"))
    reply = SiteReply("1", to_envelope([site.visit(messages())], {}))
    assert len(read("dark-0", [messages()], reply)) == 1
    for asked in (
        [messages(task="assess")],
        [messages(round_=1)],
        [messages("dark-1")],
        [messages(), messages()],
    ):
        with pytest.raises(RunError, match="answered something else"):
            read("dark-0", asked, reply)
    with pytest.raises(RunError, match=r"site dark-0 sent not an envelope"):
        read("dark-0", [messages()], SiteReply("1", Envelope("", {})))


def handler():
    site = worker(start("fedavg"))
    return SiteHandler(lambda run, node: site), Header.of(configure("fedavg", tiny_scenario())[0])


def test_mail_for_another_client_is_refused():
    site, header = handler()
    packed_mail = to_envelope([messages("dark-1")], {})
    with pytest.raises(RunError, match=r"a message for client dark-1 reached dark-0"):
        site.answer(header, packed_mail, {"client": "dark-0"})


def test_a_site_on_another_version_says_which():
    site, header = handler()
    old = Header(header.run, "0.0.9")
    expected = rf"this site has fedshift {fedshift.__version__}, the server 0\.0\.9"
    with pytest.raises(ConfigError, match=expected):
        site.introduce(old, {"client": "dark-0"})
    with pytest.raises(ConfigError, match=expected):
        site.answer(old, to_envelope([messages()], {}), {"client": "dark-0"})


def test_a_node_without_a_name_says_how_to_give_it_one():
    with pytest.raises(ConfigError, match=r"which client it is; start it with --node-config"):
        named(None, {"partition-id": 0})
    assert named(None, {"client": "berlin"}) == "berlin"


def test_without_flower_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda module: False)
    with pytest.raises(ConfigError, match=r'pip install "fedshift\[flower\]"'):
        fedshift.run("fedavg", tiny_scenario(), transport="flower")


def test_the_core_does_not_import_flower():
    program = (
        "import sys, fedshift, fedshift.cli, fedshift.testing, fedshift.deploy.flower.simulated, "
        "fedshift.transports.flower.local; "
        "print([m for m in sys.modules if m.split('.')[0] in ('flwr', 'ray')])"
    )
    source = Path(fedshift.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"


def requests(office):
    """What was asked of the sites: one entry per process that Flower would start."""
    return [
        tuple(row["scalars"]["task"] for row in json.loads(request.envelope.text)["messages"])
        for request in office.sent
        if request.envelope.text
    ]


def test_scoring_rides_with_the_training_of_the_next_round(opened):
    session, office = opened("fedbn")
    require_same(play(start("fedbn")), play(session), "asked apart and together")
    asked = requests(office)
    assert asked.count(("enrol",)) == 4
    assert asked.count(("train",)) == 4  # round 1
    assert asked.count(("score", "train")) == 8  # rounds 2 and 3 score the models of 1 and 2
    assert asked.count(("score",)) == 4  # after the last round
    assert len(asked) == 20  # 28 if scoring did not ride


def test_who_sits_out_a_round_is_scored_all_the_same(opened):
    session, office = opened("fedavg", clients_per_round=2)
    require_same(play(start("fedavg", clients_per_round=2)), play(session), "apart and together")
    asked = requests(office)
    assert asked.count(("score", "train")) == 4
    assert asked.count(("score",)) == 4 + 4


def test_what_rides_along_does_not_change_whose_letter_goes_first(opened):
    session, office = opened()
    server, before = session.server, len(office.sent)
    server.round = 1
    order = ["bright-1", "dark-0"]
    session.transport.attach([server.broadcast("score", client) for client in sorted(CLIENTS)])
    list(session.transport.deliver([server.broadcast("train", client) for client in order]))
    went = [office.at[request.node] for request in office.sent[before:]]
    assert went == [*order, "bright-0", "dark-1"]
    assert {u.client for u in session.transport.attached_replies()} == set(CLIENTS)


def test_what_finds_no_training_to_ride_with_is_asked_by_itself(opened):
    session, office = opened()
    messages = [session.server.broadcast("score", client) for client in CLIENTS[:2]]
    session.transport.attach(messages)
    before = len(office.sent)
    assert [u.client for u in session.transport.attached_replies()] == CLIENTS[:2]
    assert len(office.sent) - before == 2
    assert session.transport.attached_replies() == []


def test_a_run_killed_with_scores_outstanding_resumes_to_the_same_bits(opened, tmp_path):
    whole = play(opened("scaffold")[0])
    for finished in (1, 2):
        path = tmp_path / str(finished)
        play(opened("scaffold", path=path)[0], finished)
        assert len(list(path.glob("checkpoints/pending-*.json"))) == 1
        resumed, _ = opened("scaffold", path=path)
        assert resumed.record.pending["round"] == finished
        require_same(whole, play(resumed), f"uninterrupted and killed after round {finished}")
        assert not list(path.glob("checkpoints/pending-*.json"))
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert [row["round"] for row in lines] == [1, 2, 3]


def test_scores_of_a_round_whose_checkpoint_is_lost_are_asked_for_again(opened, tmp_path):
    path = tmp_path / "run"
    session, _ = opened("fedbn", path=path)
    play(session, 1)
    checkpoint = (path / "checkpoints" / "server.safetensors").read_bytes()
    waiting = (path / "checkpoints" / "pending-1.json").read_bytes()
    play(session, 1)  # lines of round 1 are on disk, then it dies before its own checkpoint
    (path / "checkpoints" / "server.safetensors").write_bytes(checkpoint)
    (path / "checkpoints" / "pending-1.json").write_bytes(waiting)
    resumed, _ = opened("fedbn", path=path)
    assert resumed.record.pending["round"] == 1
    assert not resumed.record.metrics
    require_same(play(opened("fedbn")[0]), play(resumed), "uninterrupted and killed")


def test_a_site_whose_state_is_gone_refuses_with_the_remedy(opened, tmp_path):
    session, _ = opened("scaffold", path=tmp_path / "run", steps=1)
    play(session, 1)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "clients" / "dark-0")
    resumed, _ = opened("scaffold", path=tmp_path / "run", steps=1)
    words = r"client dark-0 has no state, and the server expects one of round 1.*restore it"
    with pytest.raises(RunError, match=words):
        play(resumed)
