"""``make test-deploy``: kill -9 in the midst of a run; the same command again, the same result.

Too slow for every change: a killed site is let go after a minute. Figures go to deployment.md.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import federation as fed
import pytest
from federation import SITES, Deployment

from fedshift.base.errors import RunError
from fedshift.core.server import Policy
from fedshift.experiment.listener import Listener
from fedshift.runs.record import read_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("FEDSHIFT_TEST_DEPLOY") != "1", reason="minutes; run make test-deploy"
    ),
]


class At(Listener):
    """Does something once, when a round is on disk: in the midst of the next one."""

    def __init__(self, round_: int, act) -> None:
        self.round, self.act = round_, act

    def round_done(self, row):
        if row["round"] == self.round:
            self.act()


@pytest.fixture
def deployment(tmp_path: Path):
    made = Deployment(tmp_path / "deployment")
    made.root.mkdir()
    made.init(*SITES)
    try:
        made.start_server()
        made.register(*SITES)
        made.start_sites(*SITES)
        yield made
    finally:
        made.close()


def same(deployment, config, found, alone: Path) -> None:
    expected = fed.in_process(config, alone)
    assert found.summary["protocols"] == expected.summary["protocols"]
    for file in ("weights.safetensors", "checkpoints/server.safetensors"):
        assert fed.tensors(found.path / file) == fed.tensors(alone / file)
    own = {}
    for name in SITES:
        own |= fed.states(deployment.site(name).states / config.name)
    assert own == fed.states(alone / "checkpoints" / "clients")
    assert [row["round"] for row in found.history] == list(range(1, config.scenario.rounds + 1))


def test_a_supernode_killed_in_round_2_and_the_superlink_in_round_3(deployment, tmp_path: Path):
    config = fed.configured("scaffold + fedbn", rounds=4, evaluate_every=4, epochs=100)
    began = clock = time.monotonic()
    kill_site = At(1, lambda: deployment.kill(SITES[0], "deploy/supernode.py"))
    with pytest.raises(RunError, match=f"{SITES[0]}.*the same command goes on after round 1"):
        deployment.run(config, kill_site)
    report("the run ended after the kill of a SuperNode", clock)
    clock = time.monotonic()
    deployment.start_sites(SITES[0])
    report("the site was back", clock)
    kill_server = At(2, lambda: deployment.kill("server", "fedshift.deploy.flower.superlink"))
    with pytest.raises(RunError, match="does not answer"):
        deployment.run(config, kill_server)
    clock = time.monotonic()
    deployment.start_server()
    report("the server was back", clock)
    deployment.wait(lambda: set(SITES) <= deployment.online(), "sites reconnect by themselves")
    report("its sites were back", clock)
    clock = time.monotonic()
    found = deployment.run(config)
    report("the rest of the run", clock)
    report("everything", began)
    same(deployment, config, found, tmp_path / "run")


def test_a_patient_server_waits_for_a_killed_site(deployment, tmp_path: Path):
    config = fed.configured("fedbn", rounds=3, evaluate_every=3, epochs=100)

    def kill_and_restart() -> None:
        deployment.kill(SITES[0], "deploy/supernode.py")
        deployment.start("site", SITES[0])  # it waits until the server lets go

    clock = time.monotonic()
    found = deployment.run(config, At(1, kill_and_restart), Policy("wait", timeout=600))
    report("a run that waited for a killed site", clock)
    same(deployment, config, found, tmp_path / "run")


def test_the_time_of_a_round(deployment, tmp_path: Path):
    for method in ("fedavg", "fedbn", "scaffold", "fdse", "f2dc", "fedka", "csac", "feddebias"):
        target = "scenario" if method == "fedka" else None
        config = fed.configured(method, target=target, rounds=3, evaluate_every=3)
        clock = time.monotonic()
        found = deployment.run(config)
        same(deployment, config, found, tmp_path / method)
        deployed = [row["seconds"] for row in found.history]
        alone = [row["seconds"] for row in read_lines(tmp_path / method / "metrics.jsonl")]
        ratio = statistics.median(deployed) / statistics.median(alone)
        rounds = ", ".join(f"{seconds:.1f}" for seconds in deployed)
        report(f"{method}, 3 rounds of {rounds} s, {ratio:.0f} times those in one process", clock)


def test_masked_updates_give_the_model_of_one_process(deployment, tmp_path: Path):
    config = fed.configured("secure-aggregation[randomness=system]", evaluate_every=2)
    clock = time.monotonic()
    found = deployment.run(config)
    report("secure aggregation, 2 rounds", clock)
    fed.in_process(config, tmp_path / "run")  # other masks, the same sum
    file = "weights.safetensors"
    assert fed.tensors(found.path / file) == fed.tensors(tmp_path / "run" / file)
    rows = read_lines(found.path / "ledger.jsonl")
    sent = [row for row in rows if (row["task"], row["direction"]) == ("train", "up")]
    assert sent
    assert all("shared" not in row["kinds"] for row in sent)


def report(what: str, since: float) -> None:
    print(f"{what}: {time.monotonic() - since:.0f} s", flush=True)
