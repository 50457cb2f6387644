"""Flower's real apps on a grid in memory: settings, state, telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedshift
import fedshift.testing  # registers the data
from fedshift.base.errors import ConfigError, RunError
from fedshift.deploy.flower import simulated
from fedshift.report.load import load_run
from fedshift.runs.record import client_store

flower = pytest.importorskip("fedshift.transports.flower.grid")
TINY = {"method": "fedbn", "scenario": "tiny", "set": "backbone.width=4 scenario.epochs=1"}


@pytest.fixture
def grid():
    """Simulated nodes of the dataset ``tiny``: one client per domain."""
    app = flower.client_app(simulated.simulated_worker, simulated.simulated_client)

    def build(settings, nodes=3):
        return flower.InMemoryGrid(
            app, [{"partition-id": i, "num-partitions": nodes} | settings for i in range(nodes)]
        )

    return build


def test_an_app_plays_the_run_of_its_settings_as_in_process(grid, tmp_path, capsys):
    settings = TINY | {"rounds": 2, "out": str(tmp_path / "there"), "seed": 3}
    opened = grid(settings)
    opened.play(flower.server_app(simulated.play_settings), settings)
    config, _ = simulated.configured(settings)
    here = fedshift.run("fedbn", config.scenario, seed=3, out=tmp_path / "here")
    there = load_run(tmp_path / "there")
    assert there.config == here.config
    for one, other in zip(here.history, there.history, strict=True):
        assert one["losses"] == other["losses"]
        assert one.get("scores") == other.get("scores")
    weights = [tmp_path / name / "weights.safetensors" for name in ("here", "there")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert "round 2 of 2 task " in capsys.readouterr().out
    assert not any(context.state for context in opened._contexts.values())
    kept = client_store(tmp_path / "there").load("dark", before=3)
    assert (
        kept["net"].keys() == client_store(tmp_path / "here").load("dark", before=3)["net"].keys()
    )


def test_the_same_settings_again_continue_after_the_last_finished_round(grid, tmp_path):
    settings = TINY | {"rounds": 3, "out": str(tmp_path / "run")}
    opened = grid(settings)
    app = flower.server_app(simulated.play_settings)
    whole = TINY | {"rounds": 3, "out": str(tmp_path / "whole")}
    grid(whole).play(app, whole)

    played = []
    push = opened.push_messages

    def dying(messages):
        played.extend(messages := list(messages))
        if sum(m.metadata.message_type == "train" for m in played) > 3:
            raise KeyboardInterrupt
        return push(messages)

    opened.push_messages = dying
    with pytest.raises(KeyboardInterrupt):
        opened.play(app, settings)
    opened.push_messages = push
    opened.play(app, settings)
    files = [tmp_path / name / "weights.safetensors" for name in ("whole", "run")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"a setting 'lr'; known: method, "):
        simulated.configured(TINY | {"lr": 0.1})
    with pytest.raises(ConfigError, match="names no method"):
        simulated.configured(TINY | {"method": ""})
    with pytest.raises(ConfigError, match=r"'lr' is ambiguous; say scenario\.lr or add\.lr"):
        simulated.configured(TINY | {"method": "fedavg", "set": "lr=0.1"})


def test_empty_settings_leave_values_alone():
    plain, _ = simulated.configured({"method": "fedprox"})
    empty, _ = simulated.configured(
        {
            "method": "fedprox",
            "rounds": 0,
            "scale": "",
            "set": "",
            "allow": "",
            "out": "",
            "seed": 0,
        }
    )
    assert plain == empty
    changed, _ = simulated.configured(
        {"method": "fedprox", "rounds": 7, "set": "mu=0.5 scenario.lr=0.2", "allow": "domain_ids"}
    )
    assert changed.scenario.rounds == 7
    assert changed.scenario.lr == 0.2
    assert changed.settings == {"mu": "0.5"}
    assert "domain_ids" in changed.scenario.allow


def test_a_wrong_number_of_nodes_is_told_with_the_right_one(grid, tmp_path):
    settings = TINY | {"out": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match=r"2 nodes, the scenario 3 clients; .*supernodes=3"):
        grid(settings, nodes=2).play(flower.server_app(simulated.play_settings), settings)


def test_a_handler_that_fails_answers_with_one_line():
    def broken(run, node):
        raise OSError("disk\nfull")

    opened = flower.InMemoryGrid(flower.client_app(broken), [{"client": "a"}])
    [node] = opened.get_node_ids()
    config, _ = simulated.configured({"method": "fedavg"})
    envelope = flower.Envelope('{"messages": [], "layouts": []}', {})
    grid = flower.FlowerGrid(opened)
    request = flower.SiteRequest(node, "train", flower.Header.of(config), envelope)
    [reply] = grid.fetch(set(grid.send([request])))
    assert reply.failure == "OSError: disk full"
    strange = flower.SiteRequest(node, "query", flower.Header("{}", fedshift.__version__), envelope)
    [reply] = grid.fetch(set(grid.send([strange])))
    assert reply.failure.startswith("RunError: the server's message is not a run configuration")


def test_importing_the_adapter_turns_telemetry_off():
    program = (  # even where somebody has imported Flower before
        "import os; "
        "[os.environ.pop(k) for k in list(os.environ) if k.startswith(('FLWR_', 'RAY_'))]; "
        "import flwr.supercore.telemetry as t; print(t.FLWR_TELEMETRY_ENABLED); "
        "import fedshift.transports.flower.quiet; "
        "print(t.FLWR_TELEMETRY_ENABLED, os.environ['FLWR_TELEMETRY_ENABLED'])"
    )
    source = Path(fedshift.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["1", "0", "0"]


def test_messages_that_flower_does_not_accept_end_the_run(grid):
    opened = grid(TINY)
    config, _ = simulated.configured({"method": "fedavg"})
    envelope = flower.Envelope("", {})
    request = flower.SiteRequest(1, "query.whoami", flower.Header.of(config), envelope)
    for tickets in ([], [None], [""]):
        opened.push_messages = lambda messages, tickets=tickets: tickets
        with pytest.raises(RunError, match=r"Flower accepted 0 of 1 messages"):
            flower.FlowerGrid(opened).send([request])
