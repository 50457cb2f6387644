"""Bad input gets one clear line and exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

import fedshift.testing
from fedshift.base.registry import Entry
from fedshift.cli import main
from fedshift.core.loop import Step
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.registry import METHODS, SCENARIOS
from fedshift.data.dealing.partitions import PerDomain
from fedshift.testing import tiny_scenario


class Explode(Part):
    """NaN from the second step on."""

    def loss(self, client, step: Step):
        return step.out.logits.sum() * (float("nan") if step.batch.index >= 1 else 0.0)


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    """A method that goes wrong and toy scenarios, for these tests only."""
    plans = {
        "tiny": {},
        "tiny-empty": {
            "partition": PerDomain(clients_per_domain=14),
            "backbone_options": {"norm": "group"},
        },
        "tiny-single": {"partition": PerDomain(clients_per_domain=2, samples_per_client=1)},
    }
    for name, changes in plans.items():
        made = tiny_scenario(name=name, **changes)
        monkeypatch.setitem(SCENARIOS._entries, name, Entry(name, lambda made=made: made, ""))
    explode = Entry("explode", lambda: Method((Explode(),)), "")
    monkeypatch.setitem(METHODS._entries, "explode", explode)


def run(capsys, *args: str) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    return int(stop.value.code or 0), capsys.readouterr().err


CASES = {
    "no unseen domain for its protocol": (
        ["--method", "fedka", "--set", "scenario.unseen=none"],
        "an unseen protocol needs the name of the unseen domain",
    ),
    "unknown method": (
        ["--method", "fedagv"],
        "no method or part is called 'fedagv'; did you mean fedavg",
    ),
    "no method": ([], "no --method is given"),
    "unknown scenario": (
        ["--method", "fedavg", "--scenario", "digit"],
        "no scenario or dataset is called 'digit'; did you mean digits",
    ),
    "a part of a scenario's name, misspelt": (
        ["--method", "fedavg", "--scenario", "sketsh"],
        "csac/pacs/sketch",
    ),
    "a rate that may be the clients' or the server's": (
        ["--method", "fedavg", "--set", "lr=0.1"],
        "'lr' is ambiguous; say scenario.lr or add.lr",
    ),
    "a setting that is the scenario's": (
        ["--method", "fedavg", "--set", "batch_size=8"],
        "'batch_size' is an option of the scenario; say scenario.batch_size",
    ),
    "unknown backbone": (
        ["--method", "fedavg", "--backbone", "cn"],
        "no backbone is called 'cn'; did you mean cnn",
    ),
    "unknown parameter": (
        ["--method", "fedprox", "--set", "muu=1"],
        "no parameter of this method is called 'muu'; did you mean mu",
    ),
    "parameter of a method without any": (
        ["--method", "fedavg", "--set", "mu=1"],
        "no parameter of this method is called 'mu'",
    ),
    "parameter that is not a number": (
        ["--method", "fedprox", "--set", "mu=big"],
        "mu is 'big'; it takes a float",
    ),
    "parameter out of range": (
        ["--method", "fedprox", "--set", "mu=-1"],
        "proximal.mu is -1.0; it must be at least 0",
    ),
    "setting without a value": (["--method", "fedprox", "--set", "mu"], "write key=value"),
    "negative rate": (
        ["--method", "fedavg", "--set", "scenario.lr=-0.1"],
        "lr is '-0.1': Input should be greater than 0",
    ),
    "no rounds": (["--method", "fedavg", "--rounds", "0"], "rounds is 0"),
    "unknown scenario option": (
        ["--method", "fedavg", "--set", "scenario.leraning=1"],
        "no scenario option is called 'leraning'",
    ),
    "unknown backbone option": (
        ["--method", "fedavg", "--set", "backbone.wide=1"],
        "no option of backbone 'cnn' is called 'wide'",
    ),
    "too many sampled clients": (
        ["--method", "fedavg", "--clients-per-round", "9"],
        "clients_per_round is 9, but scenario 'tiny' has 4 clients; sample at most 4",
    ),
    "empty client": (
        ["--method", "fedavg", "--scenario", "tiny-empty"],
        "client 'bright-13' would hold no training sample",
    ),
    "one sample under BN": (
        ["--method", "fedavg", "--scenario", "tiny-single"],
        "client dark-0 has 1 training sample and the backbone has BatchNorm",
    ),
    "batch of one under BN": (
        ["--method", "fedavg", "--set", "scenario.batch_size=1"],
        "batch_size is 1 and the backbone has BatchNorm",
    ),
    "unknown part": (
        ["--method", "fedprox", "--without", "proximale"],
        "no part of this method is called 'proximale'; did you mean proximal",
    ),
    "clash of parts": (
        ["--method", "ditto + fedrep"],
        "personal-model and head-then-body both provide 'phases'",
    ),
    "clash of aggregators": (
        ["--method", "scaffold + fedadam"],
        "uniform and adam are both aggregators, and a method has one; leave out 'fedadam'",
    ),
    "wrong optimiser": (
        ["--method", "scaffold", "--set", "scenario.momentum=0.9"],
        "control-variates holds for sgd, not for momentum",
    ),
    "unknown transport": (
        ["--method", "fedavg", "--transport", "pigeon"],
        "no transport is called 'pigeon'",
    ),
    "workers": (["--method", "fedavg", "--workers", "none"], "--workers is 'none'"),
    "too many workers": (
        ["--method", "fedavg", "--workers", "3", "--transport", "wire"],
        "has one worker",
    ),
    "unknown grant": (["--method", "fedavg", "--grant", "gold"], "no resource is called 'gold'"),
    "missing option value": (["--method"], "requires an argument"),
    "unknown option": (["--methods", "fedavg"], "No such option"),
    "seed that is no number": (["--method", "fedavg", "--seed", "x"], "'x' is not a valid int"),
    "unreadable expression": (["--method", "fedprox[mu=1"], "cannot read 'fedprox[mu=1'"),
}


@pytest.mark.parametrize("case", CASES)
def test_run_with_bad_input(case, capsys, tmp_path: Path):
    args, expected = CASES[case]
    out = tmp_path / "run"
    scenario = [] if "--scenario" in args else ["--scenario", "tiny"]
    code, error = run(capsys, "run", *scenario, "--out", str(out), "--quiet", *args)
    assert code == 2
    assert expected in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1, error
    assert not out.exists()


def test_a_comparison_asks_whose_setting_is_meant(capsys, tmp_path: Path):
    given = ["compare", "--method", "fedavg,fedbn", "--scenario", "tiny", "--out", str(tmp_path)]
    expected = (2, "error: 'lr' is ambiguous; say scenario.lr or add.lr\n")
    assert run(capsys, *given, "--set", "lr=0.1") == expected
    code, error = run(capsys, *given, "--set", "mu=0.1")
    assert code == 2
    assert "write it as METHOD[mu=0.1]" in error
    assert not list(tmp_path.iterdir())


def test_nan_in_a_loss_names_method_client_round_step_and_term(capsys, tmp_path: Path):
    out = tmp_path / "run"
    args = ["--scenario", "tiny", "--method", "explode", "--out", str(out), "--quiet"]
    code, error = run(capsys, "run", *args, "--workers", "1")
    assert code == 2
    assert error == (
        "error: explode, client dark-0, round 1, step 1: loss term 'explode' is nan; "
        "lower lr, or set clip\n"
    )
    assert not (out / "summary.json").exists()


@pytest.mark.parametrize("command", ["show", "report"])
def test_a_missing_run_directory(command, capsys, tmp_path: Path):
    code, error = run(capsys, command, str(tmp_path / "nothing"))
    assert code == 2
    assert str(tmp_path / "nothing") in error
    assert error.count("\n") == 1


def test_resume_of_nothing(capsys, tmp_path: Path):
    code, error = run(capsys, "run", "--resume", "--out", str(tmp_path / "nothing"))
    assert code == 2
    assert "nothing holds no run to continue; leave out --resume to start one there" in error
    given = ["run", "--method", "fedbn", "--resume", "--out", str(tmp_path / "nothing")]
    assert run(capsys, *given) == (code, error)  # and not a new run on another scenario
    assert not (tmp_path / "nothing").exists()


def test_an_unknown_scenario_is_a_short_message(capsys):
    code, error = run(capsys, "run", "--method", "fedavg", "--scenario", "xyzzy")
    assert code == 2
    assert len(error) < 500
    assert "more" in error


def test_a_folder_that_holds_something_else_is_left_alone(capsys, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    code, error = run(
        capsys, "run", "--scenario", "tiny", "--method", "fedavg", "--out", str(tmp_path)
    )
    assert code == 2
    assert "is not empty and holds no run" in error
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_run_in_the_folder_is_left_alone(capsys, tmp_path: Path):
    args = ["run", "--scenario", "tiny", "--rounds", "1", "--quiet", "--out", str(tmp_path / "r")]
    assert run(capsys, *args, "--method", "fedavg")[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    code, error = run(capsys, *args, "--method", "fedbn")
    assert code == 2
    assert "holds another run" in error
    assert before == {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_a_disk_that_cannot_be_written(reason, capsys, tmp_path: Path, monkeypatch):
    out = tmp_path / "run"

    def refuse(self, data):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    code, error = run(
        capsys, "run", "--scenario", "tiny", "--method", "fedavg", "--out", str(out), "--quiet"
    )
    assert code == 2
    assert os.strerror(reason) in error
    assert str(out) in error
    assert error.count("\n") == 1
    assert not [p for p in out.rglob("*") if p.is_file()]


def test_a_disk_that_fills_up_later_keeps_the_finished_rounds(capsys, tmp_path: Path, monkeypatch):
    out = tmp_path / "run"
    args = ["run", "--scenario", "tiny", "--method", "fedbn", "--out", str(out), "--quiet"]
    write, calls = Path.write_bytes, []

    def refuse_late(self, data):
        calls.append(self)
        if "server.safetensors" in self.name and sum("server.s" in c.name for c in calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse_late)
        code, error = run(capsys, *args)
    assert (code, error.count("\n")) == (2, 1)
    assert run(capsys, *args, "--resume")[0] == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_damaged_checkpoint_is_refused(capsys, tmp_path: Path):
    path = tmp_path / "w.safetensors"
    from fedshift.base.errors import RunError
    from fedshift.base.tensor_files import read_tensors, write_tensors

    write_tensors(path, {"w": torch.arange(5.0)}, {"round": 3})
    assert read_tensors(path)[1] == {"round": 3}
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(bytes(blob))
    with pytest.raises(RunError, match="checksum does not match"):
        read_tensors(path)


def test_the_toy_dataset_is_only_there_for_tests():
    assert fedshift.testing.tiny().keys() == {"dark", "bright", "tinted"}
