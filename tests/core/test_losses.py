"""Sites that fail, hang, leave, return, join late or answer nonsense."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from alike import one_of_each_kind
from rich.console import Console

from fedshift.base.errors import ConfigError, DivergedError, RunError
from fedshift.core.config import configure
from fedshift.core.message import Lost, Update
from fedshift.core.method import Method
from fedshift.core.net import Scope
from fedshift.core.part import Part
from fedshift.core.payload import PayloadSpec
from fedshift.core.registry import build
from fedshift.core.server import Policy
from fedshift.engine import replies
from fedshift.engine.preflight import check_policy
from fedshift.experiment.run import execute
from fedshift.experiment.session import Options, prepare
from fedshift.experiment.session import play as play_to_the_end
from fedshift.report.load import load_run
from fedshift.report.results import Comparison
from fedshift.report.screen import detail
from fedshift.runs.record import read_lines
from fedshift.runs.summary import choose
from fedshift.testing import everything, play, require_same, start, tiny_scenario
from fedshift.transports import TRANSPORTS
from fedshift.transports.inprocess import InProcess

SIZES = {"bright-0": 7, "bright-1": 6, "dark-0": 11, "dark-1": 11}
SKIP = Policy("skip", min_sites=2)


class Shaky(InProcess):
    """Loses the replies named in ``faults``, as often as they are listed, and keeps the others."""

    faults: list[tuple[int, str, str]] = []  # noqa: RUF012  (round, task, client), set per test
    silent = False

    def __init__(self, worker):
        super().__init__(worker)
        self.open, self.kept = list(self.faults), {}

    def deliver(self, messages) -> Iterator[Update | Lost]:
        for message in messages:
            case = (message.round, message.task, message.client)
            if case in self.open:
                self.open.remove(case)
                if not self.silent:
                    yield Lost(message.client, message.task, message.round, "line is dead")
                continue
            reply = self.worker.visit(message)
            self.kept[case] = reply.own()
            yield reply


@pytest.fixture
def shaky(monkeypatch):
    """``shaky(method, policy, *faults)``: a tiny session before round 1, on a line that breaks."""

    def begin(method, policy, *cases, path=None, **changes):
        monkeypatch.setattr(Shaky, "faults", list(cases))
        monkeypatch.setitem(TRANSPORTS, "shaky", lambda plan: Shaky(plan.worker()))
        config, whole = configure(method, tiny_scenario(**changes))
        return prepare(config, whole, path, Options(transport="shaky", policy=policy))

    return begin


def lost_rows(session):
    return [
        (r["round"], r["task"], r["client"])
        for r in session.record.ledger
        if r["direction"] == "lost"
    ]


def test_by_default_a_loss_stops_the_run_and_names_the_site(shaky):
    session = shaky("fedavg", Policy(), (2, "train", "dark-1"))
    with pytest.raises(RunError, match=r"round 2, train: client dark-1 is lost: line is dead"):
        play(session)
    assert session.server.round == 2
    assert lost_rows(session) == [(2, "train", "dark-1")]


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_a_round_without_a_site_is_the_mean_of_the_others(shaky, weights):
    session = play(shaky("fedavg", SKIP, (1, "train", "dark-1"), weights=weights), 1)
    answered = [c for c in SIZES if c != "dark-1"]
    n = np.array([SIZES[c] if weights == "examples" else 1 for c in answered])
    for key in ("head.weight", "block1.1.running_var"):
        rows = [session.transport.kept[1, "train", c].shared[key].numpy() for c in answered]
        expected = np.tensordot(n / n.sum(), np.stack(rows).astype(np.float64), axes=1)
        np.testing.assert_allclose(session.server.shared[key], expected, rtol=1e-5, atol=1e-7)
    assert session.server.participants == 3


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
@pytest.mark.parametrize("policy", [SKIP, Policy("wait", timeout=5)], ids=["skip", "wait"])
def test_while_everybody_answers_the_policy_moves_no_bit(shaky, method, policy):
    require_same(play(start(method)), play(shaky(method, policy)), f"fail and {policy.on_loss}")


def test_too_few_answers_stop_the_run(shaky):
    cases = [(1, "train", c) for c in ("bright-0", "bright-1", "dark-0")]
    with pytest.raises(RunError, match=r"1 of 4 sites answered, and min_sites is 2.*bright-1"):
        play(shaky("fedavg", SKIP, *cases))


def test_as_many_answers_as_asked_for_are_enough(shaky):
    cases = [(1, "train", c) for c in ("bright-0", "bright-1")]
    assert play(shaky("fedavg", SKIP, *cases), 1).server.participants == 2


def test_a_small_cohort_needs_no_more_answers_than_it_has(shaky):
    policy = Policy("skip", min_sites=3)
    assert play(shaky("fedavg", policy, clients_per_round=2), 1).server.participants == 2


def test_waiting_writes_again_until_the_site_is_back(shaky, monkeypatch):
    monkeypatch.setattr(replies, "FIRST_PAUSE", 0.001)
    cases = [(2, "train", "dark-0")] * 3 + [(1, "score", "bright-1")]
    session = play(shaky("scaffold", Policy("wait", timeout=20), *cases))
    require_same(play(start("scaffold")), session, "uninterrupted and waited for")
    assert sorted(lost_rows(session)) == sorted(cases)
    assert not any("unscored" in row for row in session.record.metrics)  # it came in the end


def test_waiting_ends_with_its_time(shaky):
    session = shaky("fedavg", Policy("wait", timeout=0.2), *[(1, "train", "dark-0")] * 99)
    with pytest.raises(RunError, match=r"waited 0.2 s in vain; .*client dark-0.*line is dead"):
        play(session)
    assert len(lost_rows(session)) < 10


def test_silence_is_a_loss(shaky, monkeypatch):
    monkeypatch.setattr(Shaky, "silent", True)
    session = play(shaky("fedavg", SKIP, (1, "train", "dark-1")), 1)
    assert session.record.losses() == {
        "dark-1": [{"round": 1, "task": "train", "reason": "no answer"}]
    }


def test_a_reply_that_nobody_asked_for_is_noted_and_dropped(shaky, monkeypatch):
    session = shaky("fedavg", SKIP)
    real = session.transport.deliver

    def twice(messages):
        for reply in real(messages):
            yield reply
            if reply.client == "dark-0":
                yield replace(reply, shared={k: v + 1 for k, v in reply.shared.items()})

    monkeypatch.setattr(session.transport, "deliver", twice)
    play(session, 1)
    plain = play(start("fedavg"), 1)
    assert all(torch.equal(v, session.server.shared[k]) for k, v in plain.server.shared.items())
    assert session.record.losses()["dark-0"][0]["reason"] == "update refused: nobody asked for it"


@dataclass(frozen=True)
class OwnHead(Part):
    """Heads are uploaded and come back as they were."""

    def scope(self, net):
        return dict.fromkeys(("head.weight", "head.bias"), Scope.PERSONAL)


def test_personal_entries_of_a_lost_site_stay(shaky):
    session = play(shaky(Method((OwnHead(),)), SKIP, (2, "train", "dark-1")), 1)
    before = {c: session.server.personal_of(c) for c in SIZES}
    play(session, 1)
    for client, old in before.items():
        same = [torch.equal(v, old[k]) for k, v in session.server.personal_of(client).items()]
        assert all(same) if client == "dark-1" else not any(same)


def test_recomputed_statistics_are_those_of_who_answered(shaky):
    session = play(shaky("fedavg", SKIP, (1, "train", "dark-1"), bn="recompute"), 1)
    asked = [c for (_, task, c) in session.transport.kept if task == "statistics"]
    assert sorted(asked) == ["bright-0", "bright-1", "dark-0"]


def test_a_site_that_cannot_be_scored_is_left_out_of_the_score(shaky):
    session = play(shaky("fedavg", SKIP, (1, "score", "dark-1")), 1)
    scored = session.record.metrics[-1]["scores"]["personal"]["test"]
    whole = play(start("fedavg"), 1).record.metrics[-1]["scores"]["personal"]["test"]
    assert scored["domains"].keys() == whole["domains"].keys()
    assert scored != whole


def test_a_round_without_all_scores_is_not_the_selected_one(shaky, tmp_path):
    """Round 2 would be chosen for the mean over the easy domain alone."""
    cases = [(2, "score", "bright-0"), (2, "score", "bright-1"), (3, "train", "dark-0")]
    session = shaky("fedavg", SKIP, *cases, path=tmp_path / "run")
    result = play_to_the_end(session)
    assert [row.get("unscored") for row in result.history] == [None, ["bright-0", "bright-1"], None]
    for row in result.history[::2]:
        row["scores"]["personal"]["val"]["avg"] = row["scores"]["personal"]["test"]["avg"] = 1.0
    result.history[1]["scores"]["personal"]["val"]["avg"] = 100.0
    chosen = choose("personal", result.history, "validation")
    assert chosen["selected"]["round"] == chosen["oracle"]["round"] == 1
    assert choose("personal", result.history[1:2], "validation")["selected"]["round"] == 2
    assert "lost 1 times: dark-0, at last in round 3" in printed(detail(result))


def printed(shown):
    out = io.StringIO()
    Console(file=out, width=200).print(shown)
    return out.getvalue()


def test_a_domain_without_scores_leaves_a_gap_in_the_table(shaky):
    cases = [(3, "score", "bright-0"), (3, "score", "bright-1")]
    result = play_to_the_end(shaky("fedavg", SKIP, *cases))
    assert result.outcome("personal", "last").metrics.domains.keys() == {"dark"}
    assert "nan" in printed(detail(result))
    cell = Comparison([result]).cell(
        result.label, result.config.scenario_label, "personal", "bright", "last"
    )
    assert cell.n == 0


def test_a_latecomer_enrols_before_the_next_round(shaky):
    cases = [(0, "enrol", "dark-1"), (0, "enrol", "dark-1"), (1, "enrol", "dark-1")]
    session = shaky("ditto", SKIP, *cases)
    assert sorted(session.server.roster) == ["bright-0", "bright-1", "dark-0"]
    play(session)
    trained = [(t, c) for (t, task, c) in session.transport.kept if task == "train"]
    assert [t for t, c in trained if c == "dark-1"] == [3]
    assert [t for t, c in trained if c == "dark-0"] == [1, 2, 3]
    assert session.server.roster["dark-1"].examples == 11


@dataclass(frozen=True)
class Diary(Part):
    """Writes a page when it enrols and reads it when it trains."""

    def uploads(self, model):
        return {"train": {"page": PayloadSpec()}}

    def enrol(self, client):
        client.state[self.name] = {"page": torch.tensor(7.0)}
        return {}

    def finish(self, client):
        return {"page": client.state[self.name]["page"]}


def test_a_latecomer_finds_what_it_wrote_at_its_enrolment(shaky):
    session = play(shaky(Method((Diary(),)), SKIP, (0, "enrol", "dark-1")), 1)
    assert float(session.transport.kept[1, "train", "dark-1"].payload["diary/page"]) == 7.0


def test_a_latecomer_is_still_known_after_a_resume(shaky, tmp_path):
    cases = [(0, "enrol", "dark-1"), (0, "enrol", "dark-1")]
    whole = play(shaky("ditto", SKIP, *cases))
    play(shaky("ditto", SKIP, *cases, path=tmp_path / "run"), 2)
    resumed = shaky("ditto", SKIP, path=tmp_path / "run")
    assert sorted(resumed.server.roster) == sorted(SIZES)
    require_same(whole, play(resumed), "uninterrupted and resumed")


def test_sampling_takes_everybody_while_fewer_than_asked_have_enrolled(shaky):
    cases = [(0, "enrol", c) for c in ("dark-0", "dark-1")] * 2
    session = play(shaky("fedavg", SKIP, *cases, clients_per_round=3), 2)
    trained = [t for (t, task, _) in session.transport.kept if task == "train"]
    assert [trained.count(t) for t in (1, 2)] == [2, 3]


@dataclass(frozen=True)
class Census(Part):
    def admit(self, server, enrolments):
        server.state[self.name] = {"n": torch.tensor(sum(e.examples for e in enrolments))}


def test_a_part_that_sums_enrolments_up_is_not_given_half_of_them(shaky):
    with pytest.raises(RunError, match=r"3 of 4 sites enrolled, and census needs"):
        shaky(Method((Census(),)), SKIP, (0, "enrol", "dark-1"))


CASES = [(1, "train", "dark-1"), (2, "train", "bright-0"), (2, "score", "dark-0")]


def may_skip(method):
    return not method.pools_sites and not any(d.needs_full_participation for d in method.declared)


@pytest.mark.parametrize("method", [*one_of_each_kind(may_skip)])
def test_every_method_goes_on_without_a_site(shaky, method):
    fewest = max(2, *(d.min_clients for d in build(method).declared))
    session = play(shaky(method, Policy("skip", min_sites=fewest), *CASES))
    assert all(bool(v.isfinite().all()) for v in everything(session).values())
    assert lost_rows(session) == CASES


def test_losses_are_in_the_summary_after_a_resume_too(shaky, tmp_path):
    path = tmp_path / "run"
    play(shaky("fedavg", SKIP, (1, "train", "dark-1"), path=path), 1)
    resumed = shaky("fedavg", SKIP, (3, "train", "dark-0"), path=path)
    options = Options(resume=True, transport="shaky", policy=SKIP)
    result = execute(resumed.record.config, build("fedavg"), path, options)
    reason = {"task": "train", "reason": "line is dead"}
    assert result.summary["lost"] == {
        "dark-0": [{"round": 3} | reason],
        "dark-1": [{"round": 1} | reason],
    }
    assert load_run(path).summary["lost"] == result.summary["lost"]
    rows = [r for r in read_lines(path / "ledger.jsonl") if r["direction"] == "lost"]
    assert [(r["round"], r["client"], r["bytes"]) for r in rows] == [
        (1, "dark-1", 0),
        (3, "dark-0", 0),
    ]


@dataclass(frozen=True)
class Fuse(Part):
    """Blows at one client in round 2."""

    def begin(self, client):
        if client.id == "dark-1" and client.round == 2:
            raise DivergedError("the fuse of dark-1 is blown")


@pytest.mark.parametrize("transport", ["inprocess", "wire", "pool"])
def test_a_visit_that_fails_is_a_loss_in_every_transport(transport, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where a worker finds Fuse
    config, whole = configure(Method((Fuse(),)), tiny_scenario())
    options = Options(transport=transport, workers=2, policy=SKIP)
    session = prepare(config, whole, None, options)
    try:
        play(session)
    finally:
        session.transport.close()
    reason = {"round": 2, "task": "train", "reason": "the fuse of dark-1 is blown"}
    assert session.record.losses() == {"dark-1": [reason]}


def test_without_a_policy_the_failure_itself_is_told():
    with pytest.raises(DivergedError, match="fuse of dark-1"):
        play(start(Method((Fuse(),))))


class Everybody(Part):
    needs_full_participation = True


class Three(Part):
    min_clients = 3


def test_a_part_that_cannot_miss_a_site_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"everybody needs every client .* on_loss=wait or fail"):
        check_policy(Method((Everybody(),)), SKIP)
    with pytest.raises(ConfigError, match=r"three compares .* min_sites=3"):
        check_policy(Method((Three(),)), SKIP)
    check_policy(Method((Three(),)), Policy("skip", min_sites=3))
    check_policy(Method((Everybody(), Three())), Policy())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"on_loss": "hope"}, "fail, skip or wait"),
        ({"on_loss": "wait"}, "set timeout to the seconds"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"min_sites": 0}, "min_sites is 0"),
        ({"max_bytes": -1}, "max_bytes is -1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        Policy(**values)
