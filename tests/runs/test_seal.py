"""Files of a run that are changed, cut or lost between two attempts are named."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

import fedshift
from fedshift.base.errors import RunError
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.experiment.session import Options, prepare
from fedshift.runs import record as record_module
from fedshift.runs.record import read_config, read_lines
from fedshift.testing import play, require_same, start, tiny_scenario

SMALL = {"rounds": 3, "epochs": None, "steps": 1, "protocols": ("personal",), "unseen": None}
CHECKPOINT = "checkpoints/server.safetensors"


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Runs of one method each, killed after two of three rounds."""
    kept = {}

    def of(method):
        if method not in kept:
            kept[method] = tmp_path_factory.mktemp("begun") / "run"
            play(start(method, path=kept[method], **SMALL), 2)
        return kept[method]

    return of


@pytest.fixture
def copied(begun, tmp_path):
    """A copy of such a run, to be damaged."""
    return lambda method: shutil.copytree(begun(method), tmp_path / "run")


def changed(old, new):
    """Replaces a text in a file, once."""

    def change(file):
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


def last_line_lost(file):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def deleted(file):
    file.unlink()


@pytest.mark.parametrize(
    ("method", "name", "damage"),
    [
        ("fedavg", "metrics.jsonl", deleted),
        ("fedavg", "metrics.jsonl", last_line_lost),
        ("fedavg", "metrics.jsonl", changed('"round": 1', '"round": 2')),
        ("fedavg", "ledger.jsonl", deleted),
        ("fedavg", "ledger.jsonl", last_line_lost),
        ("fedavg", "checkpoints/roster.json", changed('"examples": 11', '"examples": 19')),
        ("fedavg", "config.json", changed('"seed": 0', '"seed": 1')),
        ("fedavg", "config.json", changed('"device": "cpu"', '"device": "cpu:0"')),
        ("local-dp", "privacy.jsonl", last_line_lost),
        ("fdse", "checkpoints/personal/dark-0/2.safetensors", deleted),
    ],
)
def test_a_damaged_file_is_named(copied, method, name, damage):
    run = copied(method)
    damage(run / name)
    with pytest.raises(RunError) as error:
        play(resumed(run))
    named = "checkpoints/personal" if "personal" in name else name
    assert f"{run / named} is not what it was when round 2 was finished" in str(error.value)


def resumed(run):
    """As the command line does: what is to be computed is read from the folder."""
    config = read_config(run)
    return prepare(config, config.build(), run, Options(resume=True))


@pytest.mark.parametrize("damage", [deleted, lambda file: file.write_bytes(b"")])
def test_a_model_of_a_selected_round_that_is_lost_is_named(copied, damage):
    run = copied("fedbn")
    kept = sorted((run / "best").glob("*/clients/dark-0.safetensors"))[0]
    damage(kept)
    with pytest.raises(RunError, match=rf"best/{kept.parts[-3]} is not what it was"):
        resumed(run)


def test_a_model_of_a_selected_round_that_is_changed_is_named(copied):
    run = copied("fedbn")
    kept = sorted((run / "best").glob("*/shared.safetensors"))[0]
    blob = bytearray(kept.read_bytes())
    blob[-1] ^= 1
    kept.unlink()
    kept.write_bytes(blob)
    with pytest.raises(RunError, match=r"shared.safetensors is damaged: its checksum"):
        resumed(run)


def test_a_lost_checkpoint_is_told_and_not_repeated_in_silence(copied):
    run = copied("fedavg")
    (run / CHECKPOINT).unlink()
    with pytest.raises(RunError, match=r"has 2 finished rounds and no checkpoint; restore it"):
        resumed(run)


class KilledError(Exception):
    """In place of a kill."""


def killed_before_checkpoint(monkeypatch, method, path, rounds):
    """A run whose process dies when all but the checkpoint of round ``rounds`` + 1 is written."""
    session = play(start(method, path=path, **SMALL), rounds)

    def dies(file, *args, **kwargs):
        if file.name == "server.safetensors":
            raise KilledError
        write_tensors(file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(record_module, "write_tensors", dies)
        with pytest.raises(KilledError):
            session.advance()


@pytest.mark.parametrize("rounds", [0, 1])
def test_lines_of_a_round_without_checkpoint_are_written_once(monkeypatch, tmp_path, rounds):
    whole = play(start("fedavg", path=tmp_path / "whole", **SMALL))
    killed_before_checkpoint(monkeypatch, "fedavg", tmp_path / "run", rounds)
    again = play(start("fedavg", path=tmp_path / "run", **SMALL))
    require_same(whole, again, f"killed in round {rounds + 1}")
    assert [row["round"] for row in read_lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]
    ledgers = [read_lines(tmp_path / name / "ledger.jsonl") for name in ("whole", "run")]
    assert ledgers[0] == ledgers[1]


def test_a_line_about_an_earlier_round_goes_with_the_round_that_wrote_it(copied):
    """Where scoring waits for the next round's messages, their lines are of the round before."""
    run = copied("fedavg")
    ledger = run / "ledger.jsonl"
    before = ledger.read_text()
    with ledger.open("a") as file:
        file.write(before.splitlines(keepends=True)[-1] + '{"half a li')
    session = resumed(run)
    assert ledger.read_text() == before
    assert len(session.record.ledger) == len(before.splitlines())


def test_a_run_that_began_without_a_seal_goes_on(copied):
    run = copied("fedavg")
    tensors, meta = read_tensors(run / CHECKPOINT)
    del meta["seal"]
    write_tensors(run / CHECKPOINT, tensors, meta)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "los')
    require_same(play(start("fedavg", **SMALL)), play(resumed(run)), "without and with a seal")
    assert "seal" in read_tensors(run / CHECKPOINT)[1]


def test_another_version_may_describe_the_run_in_other_words(copied):
    run = copied("fedavg")
    tensors, meta = read_tensors(run / CHECKPOINT)
    meta["seal"] |= {"version": "0.0.1", "run": "in other words"}
    write_tensors(run / CHECKPOINT, tensors, meta)
    require_same(play(start("fedavg", **SMALL)), play(resumed(run)), "after an update")


@pytest.mark.parametrize("seal", [None, [], {}, {"lines": 3}])
def test_a_seal_of_another_form_is_one_line(copied, seal):
    run = copied("fedavg")
    tensors, meta = read_tensors(run / CHECKPOINT)
    write_tensors(run / CHECKPOINT, tensors, meta | {"seal": seal})
    with pytest.raises(RunError, match=r"server.safetensors is damaged: .*; restore it"):
        resumed(run)


def test_the_seal_of_a_growing_file_is_that_of_the_whole_file(copied):
    run = copied("local-dp")
    seal = read_tensors(run / CHECKPOINT)[1]["seal"]
    for name in ("metrics.jsonl", "ledger.jsonl", "privacy.jsonl"):
        blob = (run / name).read_bytes()
        assert seal["lines"][name] == [len(blob), hashlib.sha256(blob).hexdigest()]
    assert json.loads(seal["run"])[0] == resumed(run).record.config.fingerprint


def test_a_run_killed_while_it_wrote_its_first_file_can_be_begun_again(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".config.json.123.part").write_text('{"run": ')
    done = fedshift.run("fedavg", tiny_scenario(**SMALL), out=run, quiet=True)
    assert done.summary["rounds"] == 3
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        fedshift.run("fedavg", tiny_scenario(**SMALL), out=tmp_path / "other", quiet=True)
