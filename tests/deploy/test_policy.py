"""A site's own policy: what it refuses whatever the server asks, told, logged and kept on disk."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
from test_sites import Many, folder_run, images, make_site

from fedshift.base import tree
from fedshift.base.errors import ConfigError, DivergedError, NotAllowedError, RunError
from fedshift.core.config import configure
from fedshift.core.message import Broadcast
from fedshift.core.server import Policy
from fedshift.deploy import session
from fedshift.deploy.flower import apps
from fedshift.deploy.folders import SitePaths
from fedshift.deploy.policy import SitePolicy, describe_policy, read_policy, write_policy
from fedshift.deploy.session import play_request
from fedshift.engine.visit import Worker
from fedshift.privacy.accountant import epsilon, epsilon_of_site
from fedshift.runs.record import read_lines
from fedshift.testing import play, start, worker

NOISY = "local-dp[noise=4, randomness=system]"


@pytest.fixture
def site(tmp_path, monkeypatch):
    images(tmp_path / "berlin-images")
    paths = make_site(tmp_path, "berlin")
    monkeypatch.setenv("FEDSHIFT_SITE", str(paths.root))
    return paths


@pytest.fixture
def two(tmp_path, monkeypatch):
    images(tmp_path / "berlin-images")
    images(tmp_path / "paris-images", {"cat": 9, "dog": 12})
    make_site(tmp_path, "berlin")
    make_site(tmp_path, "paris")
    return Many(tmp_path, monkeypatch)


def at_work(method: str = NOISY, **changes):
    """This site's worker for a run of ``method``, and the model that a server would send."""
    changes.setdefault("backbone_options", {"width": 4, "norm": "group"})
    here = apps.open_worker(folder_run(method, rounds=9, **changes), {})
    return here, here.initial


def visit(here: Worker, task: str, round_: int = 0, shared=None):
    return here.visit(Broadcast("berlin", task, round_, shared or {}))


def policy(paths: SitePaths, **rules) -> None:
    write_policy(paths.policy, SitePolicy(**rules))


def logged(paths: SitePaths) -> list[dict]:
    return [json.loads(line) for line in paths.requests.read_text().splitlines()]


def test_a_new_site_has_a_policy_that_answers_all_but_donations(tmp_path):
    policy(SitePaths(tmp_path))
    found = read_policy(SitePaths(tmp_path))
    assert found == SitePolicy()
    assert "donate" not in found.tasks
    assert {"enrol", "train", "score", "assess", "statistics", "talk"} == set(found.tasks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('tasks = ["trane"]', "tasks is .*no such task; known: enrol"),
        ("epsilon = -1", "epsilon is -1"),
        ("epsilon = ", "cannot be read"),
        ("budget = 3", "budget"),
        ("repeats = 0", "repeats is 0"),
    ],
)
def test_a_wrong_policy_is_one_line_that_names_the_file(site, text, words):
    site.policy.write_text(text)
    with pytest.raises(ConfigError, match=f"policy.toml.*{words}"):
        at_work()


def test_a_method_without_what_the_site_requires_is_refused(site, caplog):
    policy(site, require=["local-dp"])
    here, model = at_work("fedavg")
    with pytest.raises(NotAllowedError, match=r"berlin refuses enrol: .* requires local-dp"):
        visit(here, "enrol")
    assert "requires local-dp" in logged(site)[-1]["refused"]
    assert any("requires local-dp" in line for line in caplog.messages)
    here, model = at_work(NOISY)
    visit(here, "enrol")
    visit(here, "train", 1, model)
    assert "refused" not in logged(site)[-1]


def test_noise_that_the_server_can_compute_is_refused(site):
    here, _ = at_work("local-dp")
    with pytest.raises(NotAllowedError, match=r"refuses enrol: local-dp draws from the run.s seed"):
        visit(here, "enrol")


def test_the_site_spends_its_epsilon_and_no_more_over_all_runs(site):
    allowed = epsilon(4.0, 3, delta=1e-5)
    policy(site, epsilon=allowed)
    for seed in (0, 1):
        run = configure(NOISY, folder_run(NOISY, rounds=9).scenario, seed=seed)[0]
        here = apps.open_worker(run, {})
        visit(here, "enrol")
        for t in (1, 2) if seed == 0 else (1,):
            visit(here, "train", t, here.initial)
    here = apps.open_worker(run, {})  # another process
    with pytest.raises(NotAllowedError, match=r"epsilon would be .*spends at most") as error:
        visit(here, "train", 2, here.initial)
    assert "policy.toml" in str(error.value)
    assert f"spent epsilon {allowed:.3g} of {allowed:.3g}" in describe_policy(site)


def test_an_update_without_noise_has_no_epsilon(site):
    policy(site, epsilon=50)
    here, model = at_work("central-dp[randomness=system]")
    visit(here, "enrol")
    with pytest.raises(NotAllowedError, match=r"leave without noise, .* add local-dp"):
        visit(here, "train", 1, model)
    here, model = at_work("local-dp[noise=0, randomness=system]")
    visit(here, "enrol")
    with pytest.raises(NotAllowedError, match="epsilon would be inf"):
        visit(here, "train", 1, model)


def test_asking_a_round_again_and_again_does_not_average_the_noise_away(site):
    here, model = at_work()
    visit(here, "enrol")
    for _ in range(3):
        visit(here, "train", 1, model)
    with pytest.raises(NotAllowedError, match="round 1 was answered 3 times"):
        visit(here, "train", 1, model)
    visit(here, "enrol")  # which deletes the run's state, and not what was spent
    with pytest.raises(NotAllowedError, match="round 1 was answered 3 times"):
        visit(here, "train", 1, model)
    visit(here, "train", 2, model)


def test_a_request_is_on_disk_before_the_site_trains(site, monkeypatch):
    here, model = at_work()
    visit(here, "enrol")
    seen = []

    def dies(*_args):
        seen.append(logged(site)[-1])
        raise DivergedError("killed")

    monkeypatch.setattr(Worker, "_train", dies)
    with pytest.raises(DivergedError):
        visit(here, "train", 1, model)
    assert (seen[0]["task"], seen[0]["round"], seen[0]["noise"]) == ("train", 1, 4.0)


def test_a_damaged_log_stops_the_site(site):
    here, model = at_work()
    visit(here, "enrol")
    for damage in ("[1]", "{", '{"noise": "x"}', '{"noise": true}'):
        site.requests.write_text(damage + "\n")
        with pytest.raises(RunError, match=r"requests.jsonl has a damaged line"):
            visit(here, "train", 1, model)


def test_only_the_tasks_of_the_policy_are_answered(site):
    policy(site, tasks=["enrol", "train"])
    here, model = at_work("fedavg")
    visit(here, "enrol")
    visit(here, "train", 1, model)
    with pytest.raises(NotAllowedError, match="berlin refuses score: it is not one of the tasks"):
        visit(here, "score", 1, model)


@pytest.mark.parametrize("method", [NOISY, "fedavg"])
def test_private_entries_are_not_donated(site, method):
    here, model = at_work(method, backbone_options={"width": 4}, bn="local")
    visit(here, "enrol")
    visit(here, "train", 1, model)
    with pytest.raises(NotAllowedError, match="berlin refuses donate"):
        visit(here, "donate", 1)
    policy(site, tasks=["enrol", "train", "donate"])
    here, _ = at_work(method, backbone_options={"width": 4}, bn="local")
    with pytest.raises(NotAllowedError, match=r"private_at_new_site=refuse|local-dp keeps"):
        visit(here, "donate", 1)


def test_a_simulated_site_donates_where_the_scenario_says_so_and_nowhere_else():
    asks = Broadcast("dark-0", "donate", 1)
    with pytest.raises(NotAllowedError, match="private_at_new_site=refuse keeps them at the site"):
        worker(play(start("fedbn"), 1)).visit(asks)
    assert worker(play(start("fedbn", private_at_new_site="mean"), 1)).visit(asks).personal
    noisy = worker(play(start("local-dp"), 1))
    noisy.scenario = noisy.scenario.change(private_at_new_site="mean")
    with pytest.raises(NotAllowedError, match="local-dp keeps them at the site"):
        noisy.visit(asks)


def test_payload_of_parts_that_the_policy_does_not_name_stays(site):
    policy(site, payloads=["control-variates"])
    here, model = at_work("scaffold")
    visit(here, "enrol")
    state = tree.prefixed("control-variates", {k: v.float() * 0 for k, v in model.items()})
    update = here.visit(Broadcast("berlin", "train", 1, model, payload=state))
    assert update.payload
    policy(site, payloads=[])
    here, _ = at_work("scaffold")
    with pytest.raises(NotAllowedError, match="payload of control-variates may not leave"):
        here.visit(Broadcast("berlin", "train", 2, model, payload=state))
    assert "control-variates" in logged(site)[-1]["refused"]


def test_what_a_privacy_part_does_not_cover_is_not_sent_at_enrolment_either(site):
    """The server checks that, too; a server that lies does not."""
    here, _ = at_work("fedka + local-dp[randomness=system]", lr=0.01)
    guard = here.guard
    reply = dataclasses.replace(
        visit(here, "enrol"), payload={"proxy/counts": next(iter(here.initial.values()))}
    )
    with pytest.raises(NotAllowedError, match="payload of proxy is not covered by local-dp"):
        guard.after(Broadcast("berlin", "enrol", 0), reply)


def test_a_refusal_reaches_the_server_and_its_ledger(two):
    policy(SitePaths(two.root / "paris"), require=["local-dp"])
    request, post = two.request(folder_run("fedavg"), "berlin", "paris")
    with pytest.raises(NotAllowedError, match=r"client paris refuses enrol: .*requires local-dp"):
        play_request(request, post)
    lenient, post = two.request(
        folder_run("fedavg"), "berlin", "paris", policy=Policy("skip"), path=two.root / "two"
    )
    opened = session.open_session
    with pytest.raises(RunError, match="other sites"):  # paris never enrolled
        opened(lenient, post)


def test_the_domain_is_told_only_where_it_is_granted(two):
    for site, domain in (("berlin", "mri-a"), ("paris", "mri-a")):
        paths = SitePaths(two.root / site)
        text = paths.settings.read_text().replace('domain = ""', f'domain = "{domain}"')
        paths.settings.write_text(text)
    granted, post = two.request(folder_run(rounds=1), "berlin", "paris")
    opened = session.open_session(granted, post)
    assert {s.domain for s in opened.federation.sites.values()} == {"mri-a"}
    config = folder_run(rounds=1, allow=("client_val",))
    silent, post = two.request(config, "berlin", "paris", path=two.root / "b")
    opened = session.open_session(silent, post)
    assert {s.domain for s in opened.federation.sites.values()} == {"berlin", "paris"}
    policy(SitePaths(two.root / "paris"), tell_domain=False)
    half, post = two.request(folder_run(rounds=1), "berlin", "paris", path=two.root / "c")
    opened = session.open_session(half, post)
    assert opened.federation.sites["paris"].domain == "paris"
    assert opened.server.roster["paris"].facts == {}
    assert opened.server.roster["berlin"].facts == {"domain": "mri-a"}


def test_facts_are_in_the_ledger(two):
    request, post = two.request(folder_run(rounds=1), "berlin", "paris")
    play_request(request, post)
    rows = [r for r in read_lines(request.path / "ledger.jsonl") if r["task"] == "facts"]
    assert [(r["client"], r["direction"]) for r in rows] == [("berlin", "up"), ("paris", "up")]
    told = {"client": "paris", "classes": ["cat", "dog"], "shape": [3, 8, 8], "domain": "paris"}
    assert rows[1]["bytes"] == rows[1]["kinds"]["facts"] == len(json.dumps(told))


def test_updates_of_different_noise_compose():
    both = epsilon_of_site(Counter({4.0: 2, 8.0: 8}), delta=1e-5)
    assert both == pytest.approx(epsilon(4.0, 4, delta=1e-5), rel=1e-9)  # 8 / 8^2 = 2 / 4^2
    assert epsilon_of_site(Counter(), delta=1e-5) == 0
