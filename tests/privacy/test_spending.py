"""What is counted: every request, in repeated rounds too, and sampling only where it hides."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fedshift.base.errors import RunError
from fedshift.core.message import Lost
from fedshift.core.server import Policy, RoundSpent
from fedshift.privacy.accountant import EVERYBODY, Sampling, composed, epsilon
from fedshift.privacy.dp import releases
from fedshift.runs.spending import FILE, Spending
from fedshift.testing import numbers, play, require_same, start, tiny_scenario

SECRET = "central-dp[noise=3, randomness=system]"


class KilledError(Exception):
    """In place of the end of the process."""


def killed_in_round(path, method, *, after):
    """A run that ends in its next round when ``after`` updates of it have left their sites."""
    session = start(method, path=path)
    real = session.transport.deliver

    def some(messages):
        replies = real(messages)
        if messages[0].task != "train":
            return replies
        return itertools.chain(itertools.islice(replies, after), stop())

    def stop():
        raise KilledError
        yield

    session.transport.deliver = some
    with pytest.raises(KilledError):
        session.advance()


def told(session, part):
    return session.record.metrics[-1]["privacy"][part]


def test_a_run_resumed_after_a_finished_round_has_spent_as_much(tmp_path):
    whole = play(start("local-dp"))
    play(start("local-dp", path=tmp_path / "run"), 1)
    resumed = play(start("local-dp", path=tmp_path / "run"))
    assert numbers(resumed) == numbers(whole)
    require_same(whole, resumed, "uninterrupted and resumed")


def test_updates_of_interrupted_rounds_are_counted(tmp_path):
    """Every resume asks again and gets new noise: 1 + 3 interrupted + 1 are 5 of the busiest."""
    path = tmp_path / "run"
    play(start("local-dp[noise=3]", path=path), 1)
    for _ in range(3):
        killed_in_round(path, "local-dp[noise=3]", after=4)
    last = told(play(start("local-dp[noise=3]", path=path), 1), "local-dp")
    assert last["updates"] == 5
    assert last["epsilon"] == epsilon(3.0, 5, delta=1e-5)


def test_models_of_interrupted_rounds_are_counted(tmp_path):
    path = tmp_path / "run"
    for _ in range(2):
        killed_in_round(path, "central-dp[noise=3]", after=1)
    last = told(play(start("central-dp[noise=3]", path=path), 1), "central-dp")
    assert last["releases"] == 3
    assert last["epsilon"] == epsilon(3.0, 3, delta=1e-5)


def test_a_request_is_on_disk_before_it_leaves(tmp_path):
    session = start("local-dp", path=tmp_path / "run")
    real, seen = session.transport.deliver, []

    def look(messages):
        if messages[0].task == "train":
            rows = Spending(tmp_path / "run").visits()
            seen.append({m.client for m in messages} <= rows.keys())
        return real(messages)

    session.transport.deliver = look
    play(session, 1)
    assert seen == [True]


def test_a_line_cut_off_is_removed_and_a_damaged_one_is_an_error(tmp_path):
    first = Spending(tmp_path)
    first.begin(1)
    first.ask(1, "a")
    with (tmp_path / FILE).open("a") as file:
        file.write('{"round": 1, "eve')
    again = Spending(tmp_path)
    again.ask(1, "b")
    assert Spending(tmp_path).visits() == {"a": 1, "b": 1}
    for damage in ("{}", "[]", "null", '{"round": 1, "event": "asked", "client": 3}', "\x00"):
        (tmp_path / FILE).write_text(damage + "\n")
        with pytest.raises(RunError, match=r"privacy.jsonl has a damaged line"):
            Spending(tmp_path)


@pytest.mark.parametrize("method", ["central-dp[noise=3]", "local-dp[noise=3]"])
def test_a_deleted_file_does_not_give_privacy_back(tmp_path, method):
    play(start(method, path=tmp_path / "run"), 2)
    (tmp_path / "run" / FILE).unlink()
    with pytest.raises(RunError, match=r"privacy\.jsonl is not what it was when round 2"):
        start(method, path=tmp_path / "run")


def test_a_run_without_privacy_counts_nothing(tmp_path):
    play(start("fedavg", path=tmp_path / "run"), 1)
    assert not (tmp_path / "run" / FILE).exists()


def test_cohorts_that_sites_can_compute_amplify_nothing():
    last = told(play(start("central-dp[noise=3]", clients_per_round=2), 2), "central-dp")
    assert last["epsilon"] == epsilon(3.0, 2, delta=1e-5)
    assert last["amplified"] == 0


def test_secret_cohorts_amplify():
    session = play(start(SECRET, clients_per_round=2), 2)
    last = told(session, "central-dp")
    assert last["epsilon"] == epsilon(3.0, 2, delta=1e-5, cohort=2, sites=4)
    assert last["amplified"] == 2


def cohorts(session):
    rows = session.record.spending.rows
    asked = [(row["round"], row["client"]) for row in rows if row["event"] == "asked"]
    return [sorted(c for t, c in asked if t == n) for n in sorted({t for t, _ in asked})]


def test_the_seed_does_not_tell_a_secret_cohort():
    runs = [play(start(SECRET, clients_per_round=2, rounds=12)) for _ in range(2)]
    first, second = map(cohorts, runs)
    assert first != second  # equal by chance: 6^-12
    scenario = tiny_scenario(clients_per_round=2)
    clients = sorted(runs[0].server.roster)
    assert first != [scenario.cohort(0, t, clients) for t in range(1, 13)]


def test_a_secret_cohort_is_the_same_after_a_resume(tmp_path):
    path = tmp_path / "run"
    play(start(SECRET, clients_per_round=2, rounds=8, path=path), 1)
    secret = start(SECRET, clients_per_round=2, rounds=8, path=path).server.cohort_secret
    resumed = play(start(SECRET, clients_per_round=2, rounds=8, path=path), 7)
    assert resumed.server.cohort_secret == secret
    clients = sorted(resumed.server.roster)
    drawn = [resumed.server.scenario.cohort(secret, t, clients) for t in range(1, 9)]
    assert cohorts(resumed) == drawn


def test_secret_cohorts_are_uniform():
    scenario = tiny_scenario(clients_per_round=2)
    clients = ["a", "b", "c", "d"]
    drawn = Counter(tuple(scenario.cohort(b"k" * 32, t, clients)) for t in range(1, 6001))
    assert len(drawn) == 6
    assert all(abs(count - 1000) < 5 * (6000 * 5 / 36) ** 0.5 for count in drawn.values())


def test_the_sampling_rate_is_that_of_the_enrolled():
    """3 of 4 sites enrol: a cohort of 2 is 2 of 3, not 2 of 4."""
    session = start(SECRET, clients_per_round=2)
    session.server.policy = Policy("skip")
    session.server.roster.pop("dark-0")
    real = session.transport.deliver

    def absent(messages):
        for reply in real(messages):
            late = reply.task == "enrol"
            yield Lost(reply.client, reply.task, reply.round, "absent") if late else reply

    session.transport.deliver = absent
    last = told(play(session, 1), "central-dp")
    assert len(session.server.sites) == 4
    assert last["epsilon"] == epsilon(3.0, 1, delta=1e-5, cohort=2, sites=3)


@pytest.mark.parametrize(
    ("row", "how"),
    [
        (RoundSpent(1, 1, 10, 2, complete=True, secret=True), {Sampling(2, 10): 1}),
        (RoundSpent(1, 1, 10, 2, complete=True, secret=False), {EVERYBODY: 1}),
        (RoundSpent(1, 1, 10, 2, complete=False, secret=True), {EVERYBODY: 1}),
        (RoundSpent(1, 2, 10, 2, complete=True, secret=True), {EVERYBODY: 2}),
        (RoundSpent(1, 1, 2, 2, complete=True, secret=True), {EVERYBODY: 1}),
        (RoundSpent(1, 3), {EVERYBODY: 3}),
    ],
)
def test_only_secret_whole_and_single_rounds_amplify(row, how):
    assert releases([row]) == how


def test_a_missing_site_ends_the_amplification_of_its_round():
    session = start(SECRET, clients_per_round=2)
    session.server.policy = Policy("skip")
    real = session.transport.deliver

    def lossy(messages):
        for i, reply in enumerate(real(messages)):
            torn = messages[0].task == "train" and i == 0
            yield Lost(reply.client, reply.task, reply.round, "torn off") if torn else reply

    session.transport.deliver = lossy
    assert told(play(session, 1), "central-dp")["amplified"] == 0


def test_rounds_of_both_kinds_compose():
    both = composed(4.0, {EVERYBODY: 2, Sampling(1, 10): 20}, delta=1e-5)
    assert epsilon(4.0, 2, delta=1e-5) < both < epsilon(4.0, 22, delta=1e-5)
    assert both > epsilon(4.0, 20, delta=1e-5, cohort=1, sites=10)
