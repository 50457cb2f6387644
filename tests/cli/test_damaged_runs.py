"""Damaged run directories: whatever is in the files, a command ends with 0 or with one line and 2.

Each file of a small run is emptied, cut, filled with noise and removed, and every value in its JSON
is replaced by values of other types; then the run is resumed, shown and reported.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from fedshift.cli.main import main
from fedshift.experiment.run import run
from fedshift.testing import play, start, tiny_scenario

SMALL = {"rounds": 2, "epochs": None, "steps": 1, "protocols": ("personal",), "unseen": None}
ODD = (None, "x", [], {}, -1, True, 1e308, [[{}]])
RAW = {
    "empty": lambda blob: b"",
    "half": lambda blob: blob[: len(blob) // 2],
    "noise": lambda blob: bytes(random.Random(0).randrange(256) for _ in range(200)),
    "null": lambda blob: b"null\n",
    "list": lambda blob: b"[1, 2]\n",
    "text": lambda blob: b'"text"\n',
    "deep": lambda blob: b"[" * 100_000 + b"\n",
    "flipped": lambda blob: blob[:9] + bytes([blob[9] ^ 1]) + blob[10:],
}
DONE = ("config.json", "summary.json", "metrics.jsonl", "ledger.jsonl", "experiment.toml")
UNDER_WAY = (
    "config.json",
    "metrics.jsonl",
    "ledger.jsonl",
    "checkpoints/roster.json",
    "checkpoints/server.safetensors",
    "checkpoints/clients/dark-0/1.safetensors",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, and one that was killed after its first round."""
    root = tmp_path_factory.mktemp("damaged")
    run("scaffold", tiny_scenario(**SMALL), out=root / "done", quiet=True)
    play(start("scaffold", path=root / "under-way", **SMALL), 1)
    return root


def command(capsys, *words):
    """Exit code of a command; fails unless it is 0, or 2 with one line."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr().err.strip().splitlines()
    said = [line for line in said if not line.startswith("note: ")]
    if ended.value.code:
        assert ended.value.code == 2, said
        assert len(said) == 1, said
        assert said[0].startswith("error: ")
    return ended.value.code


def copy(runs, which, tmp_path):
    folder = tmp_path / "runs" / which
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(runs / which, folder)
    return folder


def read(capsys, folder):
    """Show and report; the codes of both."""
    shown = command(capsys, "show", folder)
    return shown, command(capsys, "report", folder.parent, "--format", "markdown")


@pytest.mark.parametrize("name", DONE)
def test_finished_runs_are_shown_or_refused(runs, tmp_path, capsys, name):
    for damage, change in {"missing": None, **RAW}.items():
        folder = copy(runs, "done", tmp_path)
        file = folder / name
        blob = file.read_bytes()
        file.unlink()
        if change is not None:
            file.write_bytes(change(blob))
        codes = read(capsys, folder)
        if name in ("config.json", "summary.json") and damage != "flipped":
            assert 2 in codes, (name, damage)


@pytest.mark.parametrize("name", UNDER_WAY)
def test_unfinished_runs_are_resumed_or_refused(runs, tmp_path, capsys, name):
    for damage, change in {"missing": None, **RAW}.items():
        folder = copy(runs, "under-way", tmp_path)
        file = folder / name
        blob = file.read_bytes()
        file.unlink()
        if change is not None:
            file.write_bytes(change(blob))
        code = command(capsys, "run", "--resume", "--transport", "inprocess", "--out", folder)
        if file.suffix in (".safetensors", ".json") and damage not in ("missing", "flipped"):
            assert code == 2, (name, damage)


def places(value, path=()):
    """Every place in a JSON value, as a path of keys."""
    yield path
    if not isinstance(value, dict | list):
        return
    for key, held in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places(held, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    out = dict(value) if isinstance(value, dict) else list(value)
    out[path[0]] = replaced(value[path[0]], path[1:], new)
    return out


def variants(file, many):
    """The file with one value replaced, for up to ``many`` places and values, at random."""
    lines = file.suffix == ".jsonl"
    value = [json.loads(x) for x in file.read_text().splitlines()] if lines else None
    value = value if lines else json.loads(file.read_text())
    value = value[:2] if lines else value
    every = [(path, new) for path in places(value) if path for new in ODD]
    random.Random(1).shuffle(every)
    for path, new in every[:many]:
        changed = replaced(value, path, new)
        text = "".join(json.dumps(row) + "\n" for row in changed) if lines else json.dumps(changed)
        yield path, new, text


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
def test_any_value_of_a_finished_run_may_be_another(runs, tmp_path, capsys, name):
    folder = copy(runs, "done", tmp_path)
    for path, new, text in variants(runs / "done" / name, 15):
        (folder / name).write_text(text)
        try:
            read(capsys, folder)
        except Exception as error:
            raise AssertionError(f"{name} {path} = {new!r}: {error!r}") from error


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "ledger.jsonl", "checkpoints/roster.json"]
)
def test_any_value_of_an_unfinished_run_may_be_another(runs, tmp_path, capsys, name):
    for path, new, text in variants(runs / "under-way" / Path(name), 4):
        folder = copy(runs, "under-way", tmp_path)
        (folder / name).write_text(text)
        try:
            command(capsys, "run", "--resume", "--transport", "inprocess", "--out", folder)
        except Exception as error:
            raise AssertionError(f"{name} {path} = {new!r}: {error!r}") from error
