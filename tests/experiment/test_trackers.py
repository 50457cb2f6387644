"""Trackers see every number of a run, live or afterwards, and can neither end nor change it."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
from planted import planted

from fedshift.base import extras
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.registry import Entry
from fedshift.cli import main
from fedshift.core.config import configure
from fedshift.core.message import Lost
from fedshift.core.registry import SCENARIOS
from fedshift.experiment.listener import Listener
from fedshift.experiment.session import Options
from fedshift.experiment.trackers import export, scalars_of, tracked
from fedshift.testing import tiny_scenario


def numbers(config, round_: int) -> tuple[float, float]:
    return 50.0 + round_, 40.0 + round_


@pytest.fixture
def tiny(monkeypatch):
    made = tiny_scenario(rounds=2)
    monkeypatch.setitem(SCENARIOS._entries, "tiny", Entry("tiny", lambda: made, ""))
    monkeypatch.setattr("fedshift.experiment.run.execute", planted(numbers, []))


class FakeWriter:
    def __init__(self, folder: str) -> None:
        from pathlib import Path

        Path(folder).mkdir(parents=True)
        (Path(folder) / "events").touch()
        self.seen: dict = {}
        self.closed = False
        FakeWriter.made[folder.rpartition("/")[2]] = self

    def add_scalar(self, name, value, step) -> None:
        self.seen[name, step] = value

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch) -> dict[str, FakeWriter]:
    FakeWriter.made = {}
    summary = ModuleType("tensorboard.summary")
    summary.Writer = FakeWriter
    monkeypatch.setitem(sys.modules, "tensorboard.summary", summary)
    monkeypatch.setattr(extras, "is_installed", lambda name: True)
    return FakeWriter.made


class FakeMlflow:
    """What we use of MLflow's client, in a dictionary."""

    def __init__(self, tracking_uri: str = "") -> None:
        self.uri, self.runs, self.experiments = tracking_uri, {}, {}

    def get_experiment_by_name(self, name: str):
        known = self.experiments.get(name)
        return SimpleNamespace(experiment_id=known) if known else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, f"e{len(self.experiments) + 1}")

    def search_runs(self, ids, text: str):
        found = [k for k, v in self.runs.items() if repr(v["tags"]["fedshift.run"]) in text]
        return [SimpleNamespace(info=SimpleNamespace(run_id=k)) for k in found]

    def create_run(self, home: str, run_name: str, tags: dict):
        key = f"r{len(self.runs) + 1}"
        self.runs[key] = {"name": run_name, "tags": tags, "metrics": [], "params": {}, "end": False}
        return SimpleNamespace(info=SimpleNamespace(run_id=key))

    def log_batch(self, run_id: str, metrics=(), params=()) -> None:
        self.runs[run_id]["metrics"] += metrics
        self.runs[run_id]["params"] |= dict(params)

    def set_terminated(self, run_id: str) -> None:
        self.runs[run_id]["end"] = True


@pytest.fixture
def server(monkeypatch) -> FakeMlflow:
    client = FakeMlflow()
    entities = SimpleNamespace(
        Metric=lambda key, value, time, step: (key, value, step), Param=lambda k, v: (k, v)
    )
    fake = SimpleNamespace(
        MlflowClient=lambda tracking_uri: setattr(client, "uri", tracking_uri) or client
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(extras, "is_installed", lambda name: True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return client


def play(watch, out=None):
    config, method = configure("fedavg", tiny_scenario(rounds=2))
    return config, planted(numbers, [])(config, method, out, Options(listener=watch(config)))


def test_the_numbers_of_a_round_have_names_and_are_finite():
    one = {"avg": 60.0, "std": float("nan"), "all": 61.0, "worst": 50.0, "loss": 0.5}
    one |= {"domains": {"dark": 50.0}, "confusion": {}, "clients": {"c": 1.0}}
    row = {"round": 3, "losses": {"task": 0.25}, "seconds": 2.0, "scores": {"global": {"val": one}}}
    assert scalars_of(row) == {
        "loss/task": 0.25,
        "global/val/avg": 60.0,
        "global/val/all": 61.0,
        "global/val/worst": 50.0,
        "global/val/loss": 0.5,
        "global/val/domain/dark": 50.0,
        "time/seconds": 2.0,
    }


def test_tensorboard_gets_every_round_live(writers, tmp_path):
    config, _ = play(tracked(lambda config: Listener(), ["tensorboard"], tmp_path))
    made = writers[config.name]
    assert made.seen["personal/test/avg", 1] == 41.0
    assert made.seen["personal/val/avg", 2] == 52.0
    assert made.seen["global/test/domain/dark", 2] == 41.0
    assert made.closed


def test_mlflow_gets_parameters_and_rounds_and_finds_a_resumed_run_again(server, tmp_path):
    watch = tracked(lambda config: Listener(), ["mlflow"], tmp_path)
    config, _ = play(watch)
    (kept,) = server.runs.values()
    assert server.uri == (tmp_path / "mlflow").as_uri()
    assert (kept["name"], kept["params"]["method"], kept["end"]) == (config.name, "fedavg", True)
    assert kept["params"]["scenario.lr"] == str(config.scenario.lr)
    assert ("personal/test/avg", 42.0, 2) in kept["metrics"]
    play(watch)
    assert len(server.runs) == 1


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(server, tmp_path, caplog):
    server.log_batch = lambda *_, **__: 1 / 0
    with caplog.at_level(logging.WARNING, "fedshift"):
        _, result = play(tracked(lambda config: Listener(), ["mlflow"], tmp_path))
    assert len(result.history) == 2
    assert [r.message for r in caplog.records if "mlflow" in r.message] == [
        "logging to mlflow failed and is left out from here: division by zero"
    ]


def test_losses_of_sites_are_counted_and_the_other_listener_still_hears_all(writers, tmp_path):
    heard: list[str] = []

    class Ear(Listener):
        def lost(self, lost: Lost) -> None:
            heard.append(lost.client)

    config, _ = configure("fedavg", tiny_scenario(rounds=2))
    both = tracked(lambda config: Ear(), ["tensorboard"], tmp_path)(config)
    both.started(config, 2, 1)
    both.lost(Lost("a", "train", 1, "gone"))
    both.lost(Lost("b", "train", 2, "gone"))
    assert heard == ["a", "b"]
    assert writers[config.name].seen == {("sites/lost", 1): 1.0, ("sites/lost", 2): 2.0}


def test_an_old_run_is_exported_once(writers, server, tmp_path):
    config, _ = play(lambda config: Listener(), tmp_path / "run")
    for name in ("tensorboard", "mlflow"):
        assert list(export([tmp_path / "run"], name, tmp_path / "logs")) == [
            (tmp_path / "run", True)
        ]
    assert writers[config.name].seen["personal/test/avg", 2] == 42.0
    (kept,) = server.runs.values()
    assert (len(kept["metrics"]), kept["end"]) == (2 * len(writers[config.name].seen) // 2, True)
    assert list(export([tmp_path / "run"], "mlflow", tmp_path / "logs")) == [
        (tmp_path / "run", False)
    ]
    assert len(kept["metrics"]) == len(writers[config.name].seen)


def test_the_commands_log_live_and_export(tiny, writers, server, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "--method", "fedavg", "--scenario", "tiny", "--quiet", "--workers", "1"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--log", "tensorboard", "--log", "mlflow"])
    assert not stop.value.code
    assert len(writers) == len(server.runs) == 1
    assert (tmp_path / "runs" / "tensorboard").is_dir()
    with pytest.raises(SystemExit) as stop:
        main(["export-log", "runs", "--to", "tensorboard", "--out", "logs"])
    assert not stop.value.code
    assert "logged: runs/fedavg" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["export-log", "logs", "--to", "mlflow"])
    assert stop.value.code == 2


def test_what_is_missing_is_one_line_before_anything_is_played(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "is_installed", lambda name: False)
    for name in ("tensorboard", "mlflow"):
        with pytest.raises(ConfigError, match=rf'not installed; pip install "fedshift\[{name}\]"'):
            tracked(lambda config: Listener(), [name], tmp_path)
    with pytest.raises(UnknownNameError, match="tracker"):
        tracked(lambda config: Listener(), ["wandb"], tmp_path)


@pytest.mark.exhaustive
@pytest.mark.skipif(not extras.is_installed("tensorboard"), reason="needs the extra tensorboard")
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_itself_reads_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config, _ = play(tracked(lambda config: Listener(), ["tensorboard"], tmp_path))
    found = EventAccumulator(str(tmp_path / "tensorboard" / config.name)).Reload()
    tags = found.Tags()
    assert "personal/test/avg" in tags["scalars"] + tags["tensors"]
    values = [e.tensor_proto.float_val[0] for e in found.Tensors("personal/test/avg")]
    assert values == [41.0, 42.0]
