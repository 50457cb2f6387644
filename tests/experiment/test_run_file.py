"""A run is one file to repeat: what is written can be read, and gives the same run."""

from __future__ import annotations

import json
import tomllib

import pytest
import torch

import fedshift
from fedshift.base.errors import ConfigError
from fedshift.base.tensor_files import read_tensors
from fedshift.cli import main
from fedshift.core.config import FORMAT, configure
from fedshift.core.registry import SCENARIOS
from fedshift.engine.compute import Compute
from fedshift.experiment.run import method_of, run, run_file, scenario_of
from fedshift.experiment.scenario import find_scenario
from fedshift.methods.mixup import Mixup
from fedshift.runs.run_file import NAME, read_run_file, write_run_file
from fedshift.testing import tiny_scenario


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", sorted(SCENARIOS.entries()))
def test_every_scenario_comes_back_from_its_file(name, scale, tmp_path):
    sized = "scale" in SCENARIOS.get(name).options
    config, _ = configure("fedavg", find_scenario(name, scale=scale if sized else None))
    write_run_file(tmp_path, config, Compute())
    again = scenario_of(read_run_file(tmp_path))
    assert again == config.scenario
    assert configure("fedavg", again)[0].fingerprint == config.fingerprint


@pytest.mark.parametrize(
    ("method", "settings", "without"),
    [
        ("fedprox", {"mu": "0.3"}, ()),
        ("fedprox", {"mu": 0.3}, ()),
        ("feddyn", {"clip": None}, ()),
        ("moon[projector=true]", {}, ("projector",)),
        ("fedavg + mixup[alpha=0.4]", {}, ()),
    ],
)
def test_every_method_comes_back_from_its_file(method, settings, without, tmp_path):
    config, _ = configure(
        method, tiny_scenario(lr=0.1 + 0.2), seed=3, settings=settings, without=without
    )
    write_run_file(tmp_path, config, Compute(layout="contiguous"))
    file = read_run_file(tmp_path / NAME)
    again, _ = configure(
        method_of(file, NAME),
        scenario_of(file),
        seed=file.seed,
        settings=file.settings,
        without=file.without,
    )
    assert again.fingerprint == config.fingerprint
    assert file.compute == Compute(layout="contiguous")


def test_the_file_of_a_run_directory_repeats_the_run_to_the_bit(tmp_path):
    run("fedprox", tiny_scenario(), out=tmp_path / "a", rounds=2, seed=5, settings={"mu": 0.2})
    again = run_file(tmp_path / "a" / NAME, out=tmp_path / "b", quiet=True)
    assert again.config.fingerprint == fedshift.load(tmp_path / "a").config.fingerprint
    one, other = (read_tensors(tmp_path / p / "weights.safetensors")[0] for p in "ab")
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_options_replace_what_the_file_says(tmp_path):
    run("fedavg", tiny_scenario(), out=tmp_path / "a", rounds=1)
    found = run_file(tmp_path / "a", seed=7, rounds=2)
    assert (found.config.seed, found.config.scenario.rounds) == (7, 2)


SHORT = """
method = "fedprox"
seed = 2
allow = ["public_set"]
[settings]
mu = 0.25
[scenario]
name = "digits"
rounds = 4
backbone_options = { width = 8 }
[scenario.partition]
clients_per_domain = 1
"""


def test_a_short_file_changes_a_named_scenario(tmp_path):
    (tmp_path / "short.toml").write_text(SHORT)
    file = read_run_file(tmp_path / "short.toml")
    base, scenario = find_scenario("digits"), scenario_of(file)
    assert scenario.rounds == 4
    assert scenario.partition.clients_per_domain == 1
    assert scenario.partition.samples_per_client == base.partition.samples_per_client
    assert scenario.backbone_options == {"width": 8}
    assert set(scenario.allow) == {*base.allow, "public_set"}
    assert scenario.change(
        rounds=base.rounds,
        partition=base.partition,
        backbone_options=base.backbone_options,
        allow=base.allow,
    ) == base  # fmt: skip


def test_the_command_line_plays_a_file_and_its_options_win(tmp_path, capsys):
    (tmp_path / "short.toml").write_text(SHORT)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "run",
                str(tmp_path / "short.toml"),
                "--rounds",
                "1",
                "--seed",
                "9",
                "--json",
                "--set",
                "mu=0.5",
                "--transport",
                "inprocess",
                "--out",
                str(tmp_path / "out"),
            ]
        )
    assert ended.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert (found["seed"], found["rounds"]) == (9, 1)
    config = fedshift.load(tmp_path / "out").config
    assert config.composition["parts"][0]["mu"] == 0.5
    assert config.scenario.partition.clients_per_domain == 1
    written = tomllib.loads((tmp_path / "out" / NAME).read_text())
    assert written["method"] == "fedprox"
    assert "data" in written["scenario"]  # complete


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method = ", "is not TOML"),
        ('methods = "fedavg"', "methods"),
        ("seed = 1", "method"),
        ('method = "fedavg"\nscenario = "nowhere"', "no scenario or dataset is called 'nowhere'"),
        ('method = "fedavg"\n[scenario]\nname = "digits"\nround = 3', "did you mean rounds"),
        ('method = "fedavg"\n[scenario]\nname = "x"\ndata = "digits"', "domains"),
        ('method = "fedavg"\n[compute]\ndevices = "cpu"', "devices"),
        ('method = "nothing"', "no method or part is called 'nothing'"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(text, expected, tmp_path, capsys):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "bad.toml"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    message = capsys.readouterr().err.strip()
    assert expected in message
    assert "\n" not in message
    assert not (tmp_path / "out").exists()


def test_a_method_typed_as_a_file_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "fedavg"])
    assert ended.value.code == 2
    assert "fedavg is not a run file; for a method write --method fedavg" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none.toml: No such file"):
        run_file(tmp_path / "none.toml")


def test_a_method_that_was_an_object_has_to_be_given_again(tmp_path):
    stacked = fedshift.build("fedavg").plus(Mixup(alpha=0.4))
    run(stacked, tiny_scenario(), out=tmp_path / "r", rounds=1)
    with pytest.raises(ConfigError, match="was a Python object; give it again"):
        run_file(tmp_path / "r")


# directories of earlier versions


def older(path):
    """A run directory as versions before 0.2 wrote it."""
    run("fedbn", tiny_scenario(private_at_new_site="mean"), out=path, rounds=1)
    held = json.loads((path / "config.json").read_text())
    scenario = held["run"]["scenario"]
    scenario["newcomer"] = scenario.pop("private_at_new_site")
    scenario["grants"] = scenario.pop("allow")
    held["run"]["format"] = 1
    (path / "config.json").write_text(json.dumps(held))
    (path / NAME).unlink()


def test_a_run_directory_of_format_1_is_read_and_resumed(tmp_path):
    older(tmp_path / "r")
    found = fedshift.load(tmp_path / "r")
    assert found.config.scenario.private_at_new_site == "mean"
    assert found.config.format == FORMAT == 2
    (tmp_path / "r" / "summary.json").unlink()
    again = run(
        "fedbn",
        tiny_scenario(private_at_new_site="mean"),
        out=tmp_path / "r",
        rounds=1,
        resume=True,
    )
    assert again.summary["protocols"] == found.summary["protocols"]


def test_a_format_of_the_future_is_refused_in_one_line(tmp_path):
    run("fedavg", tiny_scenario(), out=tmp_path / "r", rounds=1)
    held = json.loads((tmp_path / "r" / "config.json").read_text())
    held["run"]["format"] = 99
    (tmp_path / "r" / "config.json").write_text(json.dumps(held))
    with pytest.raises(fedshift.RunError, match="has format 99, and this version reads 1 and 2"):
        fedshift.load(tmp_path / "r")


def test_old_names_of_scenario_values_still_work():
    assert tiny_scenario(newcomer="mean").private_at_new_site == "mean"
    assert tiny_scenario(grants=("client_val",)).allow == ("client_val",)
