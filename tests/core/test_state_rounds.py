"""A client's state is of the round that the server knows, or the client refuses to go on."""

from __future__ import annotations

import shutil

import pytest

from fedshift.base.errors import RunError
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.cli import main
from fedshift.core.config import configure
from fedshift.core.message import Broadcast
from fedshift.core.server import Policy
from fedshift.experiment.session import Options, prepare
from fedshift.runs.record import client_store
from fedshift.testing import play, require_same, start, tiny_scenario, worker
from fedshift.transports import TRANSPORTS
from fedshift.transports.inprocess import InProcess


def opened(path, transport="inprocess", method="scaffold", policy=None, **changes):
    config, whole = configure(method, tiny_scenario(**({"steps": 1} | changes)))
    options = Options(transport=transport, workers=2, policy=policy or Policy())
    return prepare(config, whole, path, options)


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory):
    """A run of SCAFFOLD after round 2 of 3, and a copy of its states after round 1."""
    path = tmp_path_factory.mktemp("run")
    session = play(opened(path / "run"), 1)
    shutil.copytree(path / "run" / "checkpoints" / "clients", path / "old")
    play(session, 1)
    return path


@pytest.fixture
def run(two_rounds, tmp_path):
    shutil.copytree(two_rounds, tmp_path / "both")
    return tmp_path / "both"


def states(run, client="dark-0"):
    return run / "run" / "checkpoints" / "clients" / client


DAMAGE = {
    "deleted": (lambda run: shutil.rmtree(states(run)), "has no state"),
    "of round 1": (
        lambda run: (states(run) / "2.safetensors").unlink(),
        "has a state of round 1",
    ),
}


@pytest.mark.parametrize(
    ("transport", "case"),
    [("inprocess", "deleted"), ("inprocess", "of round 1"), ("pool", "of round 1")],
)
def test_a_resumed_run_does_not_go_on_with_another_state(run, transport, case):
    damage, words = DAMAGE[case]
    damage(run)
    session = opened(run / "run", transport)
    try:
        with pytest.raises(RunError) as error:
            play(session)
    finally:
        session.transport.close()
    text = str(error.value)
    assert f"client dark-0 {words}, and the server expects one of round 2 before round 3" in text
    assert "restore it, or delete the run and repeat it" in text


def test_a_file_of_another_round_under_the_right_name_is_refused(run):
    shutil.copy(run / "old" / "dark-0" / "1.safetensors", states(run) / "2.safetensors")
    with pytest.raises(RunError, match=r"2.safetensors holds the state of round 1; restore"):
        play(opened(run / "run"))


def test_at_the_command_line_it_is_one_line_and_exit_code_2(run, capsys):
    DAMAGE["deleted"][0](run)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", "--out", str(run / "run"), "--quiet"])
    assert ended.value.code == 2
    err = capsys.readouterr().err.strip()
    assert "client dark-0 has no state" in err
    assert "Traceback" not in err


def test_undamaged_it_resumes_to_the_same_bits(run):
    whole = play(opened(None))
    require_same(whole, play(opened(run / "run")), "uninterrupted and resumed")


def test_under_skip_only_that_client_is_lost(run):
    DAMAGE["deleted"][0](run)
    session = play(opened(run / "run", policy=Policy("skip")))
    reasons = session.record.losses()
    assert reasons.keys() == {"dark-0"}
    assert "has no state" in reasons["dark-0"][0]["reason"]


def test_a_state_that_the_server_never_heard_of_is_refused():
    session = start("scaffold", steps=1)
    worker(session).store.save("dark-0", 0, {"control-variates": {}, "net": {"x": None}})
    with pytest.raises(RunError, match=r"dark-0 has a state of round 0, and the server expects no"):
        play(session, 1)


class Deaf(InProcess):
    """The replies of some visits are lost on their way; the visits take place."""

    lost = frozenset()

    def deliver(self, messages):
        for reply in super().deliver(messages):
            if (reply.round, reply.task, reply.client) not in self.lost:
                yield reply


def test_a_client_whose_replies_were_lost_may_be_newer(monkeypatch, tmp_path):
    """It trained in rounds 1 and 2 and nobody heard of it; it keeps what it learnt, and goes on."""
    monkeypatch.setitem(TRANSPORTS, "deaf", lambda plan: Deaf(plan.worker(), lenient=True))
    lost = frozenset((t, "train", "dark-0") for t in (1, 2))
    monkeypatch.setattr(Deaf, "lost", lost)
    first = play(opened(tmp_path / "run", "deaf", policy=Policy("skip")), 2)
    assert first.server.visits["dark-0"] == (-1, 2)
    assert first.server.visits["dark-1"] == (2, 2)
    resumed = play(opened(tmp_path / "run", "deaf", policy=Policy("skip")))
    assert resumed.server.visits["dark-0"] == (3, 3)
    whole = play(opened(None, "deaf", policy=Policy("skip")))
    require_same(whole, resumed, "uninterrupted and resumed")


def test_clients_that_keep_nothing_are_not_asked_for_it(tmp_path):
    session = play(opened(tmp_path / "run", method="fedavg"), 1)
    assert session.server.visits == {}
    play(opened(tmp_path / "run", method="fedavg"))


def test_clients_that_were_not_sampled_are_known_by_their_last_visit():
    session = play(start("scaffold", steps=1, clients_per_round=2))
    sent = [m for m in session.transport.seen if isinstance(m, Broadcast) and m.task == "train"]
    last = {}
    for message in sent:
        want = last.get(message.client, -1)
        assert message.visited == (want, want)
        last[message.client] = message.round


def test_a_run_that_began_before_visits_were_noted_goes_on(run):
    checkpoint = run / "run" / "checkpoints" / "server.safetensors"
    tensors, meta = read_tensors(checkpoint)
    write_tensors(checkpoint, tensors, {"round": meta["round"]})
    session = opened(run / "run")
    assert set(session.server.visits.values()) == {None}
    require_same(play(opened(None)), play(session), "uninterrupted and resumed")


@pytest.mark.parametrize("bad", [{"dark-0": [1]}, {"dark-0": [1, -7]}, {"dark-0": "x"}, [1]])
def test_damaged_visits_are_one_line(run, bad):
    checkpoint = run / "run" / "checkpoints" / "server.safetensors"
    tensors, meta = read_tensors(checkpoint)
    write_tensors(checkpoint, tensors, meta | {"visits": bad})
    with pytest.raises(RunError, match=r"server.safetensors is damaged"):
        opened(run / "run")


def test_what_parts_talk_about_in_a_repeated_round_reads_the_state_before_it(tmp_path):
    """An interrupted round 2 has left a state of round 2: keys come from the one before."""
    play(start("secure-aggregation", steps=1, path=tmp_path / "run"), 1)
    store = client_store(tmp_path / "run")
    store.save("dark-0", 2, {"secure-aggregation": {}})
    resumed = start("secure-aggregation", steps=1, path=tmp_path / "run")
    require_same(
        play(start("secure-aggregation", steps=1)), play(resumed), "uninterrupted and resumed"
    )
