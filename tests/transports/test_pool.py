"""What the pool does beyond the contract's \"same bits\": failures, memory, streaming."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from fedshift.base.errors import DivergedError, RunError
from fedshift.core.aggregate import weighted_mean
from fedshift.core.config import configure
from fedshift.core.message import Update
from fedshift.core.method import Method
from fedshift.core.net import Scope, head_keys
from fedshift.core.part import Part
from fedshift.core.payload import PayloadSpec
from fedshift.engine.replies import answers
from fedshift.engine.round import collect, merge_arriving, streams
from fedshift.experiment.session import Options, prepare
from fedshift.testing import play, require_same, start, tiny_scenario
from fedshift.transports import pool as pool_module
from fedshift.transports.shared_memory import Reader, Writer


@pytest.fixture
def pooled():
    opened = []

    def open_pool(method, path=None, **changes):
        config, whole = configure(method, tiny_scenario(**changes))
        opened.append(prepare(config, whole, path, Options(transport="pool", workers=2)))
        return opened[-1]

    yield open_pool
    for session in opened:
        session.transport.close()


def test_what_is_written_is_read_back_bit_for_bit():
    writer, reader = Writer(), Reader()
    tensors = {
        1: torch.randn(3, 5).t(),  # not contiguous
        2: torch.tensor(7),
        3: torch.empty(0, 4),
        4: torch.tensor([True, False]),
    }
    found = {key: reader.read(where) for key, where in writer.write(tensors).items()}
    for key, tensor in tensors.items():
        assert torch.equal(found[key], tensor)
        assert found[key].dtype == tensor.dtype
    writer.close()


def test_a_block_grows_and_readers_follow():
    writer, reader = Writer(), Reader()
    assert reader.read(writer.write({0: torch.ones(4)})[0]).tolist() == [1.0] * 4
    large = torch.arange(100_000)
    assert torch.equal(reader.read(writer.write({0: large})[0]), large)
    writer.close()


def test_a_divergence_in_a_worker_is_the_same_error_as_here(pooled):
    with pytest.raises(DivergedError) as here:
        play(start("fedavg", lr=1e20))
    with pytest.raises(DivergedError) as there:
        play(pooled("fedavg", lr=1e20))
    assert str(here.value) == str(there.value)


def test_a_worker_that_dies_is_named(pooled):
    session = pooled("fedavg")
    os.kill(session.transport._workers[0].process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"worker of client .* ended \(exit code -9\).*fewer"):
        play(session, 1)


def test_a_run_begun_in_process_is_resumed_by_the_pool(pooled, tmp_path):
    whole = play(start("fedbn"))
    play(start("fedbn", path=tmp_path / "run"), 1)
    resumed = play(pooled("fedbn", tmp_path / "run"))
    for key, value in whole.server.shared.items():
        assert torch.equal(value, resumed.server.shared[key])


def test_the_state_of_a_pool_without_a_folder_is_gone_when_it_closes(pooled):
    session = play(pooled("fedbn"), 1)
    folder = session.transport.store.folder
    assert any(folder.iterdir())
    session.transport.close()
    assert not folder.exists()


def test_methods_whose_server_half_looks_at_all_updates_do_not_stream():
    answers = {name: streams(start(name).server) for name in ("fedavg", "fedbn", "fedadam")}
    assert all(answers.values())
    for name in ("scaffold", "groupdro"):
        assert not streams(start(name).server), name


def test_streaming_gives_the_bits_of_the_list():
    session = start("fedavg")
    server = session.server
    server.round = 1
    updates = collect(server, session.transport, "train", list(server.roster), session.record)
    listed = server.method.aggregate(server, updates)
    stubs = merge_arriving(server, iter(updates), list(server.roster))
    assert all(torch.equal(listed[k], server.shared[k]) for k in listed)
    assert [u.client for u in stubs] == [u.client for u in updates]
    assert not any(u.shared for u in stubs)


def test_streaming_holds_one_reply_at_a_time():
    alive = []

    def arriving():
        for i in range(5):
            alive.append(torch.full((3,), float(i)))
            yield {"w": alive[-1]}
            alive[-1].fill_(99.0)  # the transport takes its memory back

    mean = weighted_mean(arriving(), torch.full((5,), 0.2, dtype=torch.float64))
    assert mean["w"].tolist() == pytest.approx([2.0] * 3)


def test_counters_of_a_mean_take_the_largest_value():
    trees = [{"w": torch.ones(1), "n": torch.tensor(n)} for n in (3, 7, 5)]
    mean = weighted_mean(trees, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert int(mean["n"]) == 7
    assert int(trees[0]["n"]) == 3, "the first one is not written on"


def test_what_all_clients_get_is_written_once(pooled):
    session = pooled("fedavg")
    messages = [session.server.broadcast("train", client) for client in session.server.roster]
    common = session.transport._write_common(messages)
    assert common.of.keys() == {id(v) for v in session.server.shared.values()}


def test_a_reply_owns_its_memory_when_asked_to():
    borrowed = torch.ones(2)
    owned = Update("a", "train", 1, shared={"w": borrowed}).own()
    borrowed.fill_(5.0)
    assert owned.shared["w"].tolist() == [1.0, 1.0]


class Borrowing:
    """Answers in reverse, in as few blocks of memory as it says."""

    checks_finite = True

    def __init__(self, blocks):
        self.reply_lifetime = blocks

    def deliver(self, messages):
        blocks = [torch.zeros(1) for _ in range(self.reply_lifetime)]
        for i, message in enumerate(reversed(messages)):
            memory = blocks[i % len(blocks)].fill_(float(i))
            yield Update(message.client, "enrol", 0, payload={"own-head/w": memory}, examples=1)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_reply_that_comes_early_is_held_in_memory_of_its_own(blocks):
    session = start(Method((OwnHead(),)))
    clients = sorted(session.server.roster)
    found = collect(session.server, Borrowing(blocks), "enrol", clients, session.record)
    assert sorted(float(u.payload["own-head/w"]) for u in found) == [0.0, 1.0, 2.0, 3.0]


def test_a_reply_is_not_copied_before_its_memory_is_written_again(monkeypatch):
    session = start(Method((OwnHead(),)))
    copied: list[str] = []

    def noted(update):
        copied.append(update.client)
        return own(update)

    own = Update.own
    monkeypatch.setattr(Update, "own", noted)
    transport = Borrowing(2)
    messages = [
        session.server.broadcast("enrol", client) for client in sorted(session.server.roster)
    ]
    values = [
        float(u.payload["own-head/w"])
        for u in answers(session.server, transport, messages, session.record)
    ]
    assert values == [3.0, 2.0, 1.0, 0.0]
    assert copied == [m.client for m in reversed(messages)][:-2]  # the last two were read in place


class OwnHead(Part):
    """A personal head, and no hook that would ask for all updates."""

    def scope(self, net):
        return dict.fromkeys(head_keys(net), Scope.PERSONAL)

    def uploads(self, model):
        return {"enrol": {"w": PayloadSpec((1,), optional=True)}}


def test_personal_entries_without_a_hook_still_reach_the_server():
    server = play(start(Method((OwnHead(),))), 1).server
    assert not streams(server)
    assert all(server.personal.load(c, before=2)["net"] for c in server.roster)


class Shift(Part):
    """A server phase."""

    def refine(self, server):
        server.shared = {k: v + 1 for k, v in server.shared.items()}


def test_the_merged_model_is_known_after_the_server_phases():
    plain, shifted = play(start("fedavg"), 1), play(start(Method((Shift(),))), 1)
    for key, value in plain.server.shared.items():
        assert torch.equal(shifted.server.aggregated[key], value)
        assert torch.equal(shifted.server.shared[key], value + 1)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a matter of Linux")
def test_workers_do_not_push_the_server_aside_when_they_wake(pooled):
    session = pooled("fedavg")
    pids = [worker.process.pid for worker in session.transport._workers]
    assert {os.sched_getscheduler(pid) for pid in pids} == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) != os.SCHED_BATCH


def test_a_stopped_worker_is_started_anew_and_changes_nothing(pooled):
    session = pooled("fedbn", rounds=2)
    pool = session.transport
    session.advance()
    victim = pool._workers[0].process.pid
    os.kill(victim, signal.SIGSTOP)
    session.advance()
    assert pool._workers[0].process.pid != victim
    assert sum(worker.restarts for worker in pool._workers) == 1
    require_same(play(start("fedbn", rounds=2)), session, "with and without a stopped worker")


def test_a_worker_that_is_stuck_again_and_again_is_an_error(pooled):
    session = pooled("fedavg")
    worker = session.transport._workers[0]
    worker.restarts = pool_module.RESTARTS
    os.kill(worker.process.pid, signal.SIGSTOP)
    with pytest.raises(RunError, match="was stuck 4 times"):
        session.advance()


def test_a_visit_past_the_timeout_counts_as_stuck(pooled):
    pool = pooled("fedavg").transport
    worker = pool._workers[0]
    worker.since = time.monotonic() - 10
    assert not pool._is_stuck(worker)  # without a timeout a visit may take any time
    pool._timeout = 5.0
    assert pool._is_stuck(worker)
    worker.since = time.monotonic()
    assert not pool._is_stuck(worker)
