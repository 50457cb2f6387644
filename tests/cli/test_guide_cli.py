"""``fedshift doctor`` and ``fedshift init``: what is printed, written, asked and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from guide_data import forget_own, pictures, rows

from fedshift.cli import init as asking
from fedshift.cli import main
from fedshift.data.library.datasets import add
from fedshift.runs.run_file import read_run_file


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    for name, seed in (("day", 0), ("night", 1), ("dusk", 2)):
        x, y = pictures(seed)
        Path("shots").mkdir(exist_ok=True)
        x = x // 2 if name == "night" else x
        np.savez(f"shots/{name}.npz", x=x, y=y, split=(np.arange(len(y)) % 4 == 3).astype(np.uint8))
    yield
    forget_own()


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_the_doctor_prints_sentences_then_tables_within_80_columns(capsys):
    assert run("doctor", "shots", "--skip-cost") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "day and dusk look alike." in text
    assert "night differs in " in text
    assert "brightness (darker: " in text
    assert text.index("look alike.") < text.index("A linear model trained at the row's site")
    assert "What this look cannot see: " in text


def test_the_doctor_tells_all_as_json_and_draws(capsys):
    words = ["doctor", "shots", "--json", "--samples", "40", "--plot", "x.png", "--size", "8"]
    assert run(*words) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["shift"]["alike"] == [["day", "dusk"]]
    assert found["cost"]["rounds"] == 30
    assert "written: x.png" in told.err
    assert Path("x.png").read_bytes()[:4] == b"\x89PNG"


def test_the_doctor_takes_columns_of_a_table(capsys):
    text = "age,num,ward\n" + "\n".join(f"{i / 7:.2f},{i % 2},{'ab'[i > 40]}" for i in range(80))
    Path("t.csv").write_text(text)
    assert run("doctor", "t.csv", "--label", "num", "--site", "ward", "--skip-cost", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["sites"]) == ["a", "b"]


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "nothing-like-it"],
        ["doctor", "./gone"],
        ["doctor", "shots", "--plot", "x.bmp"],
        ["doctor", "x.bin"],
        ["doctor", "shots", "--samples", "3"],
        ["init"],
        ["init", "nothing-like-it"],
        ["init", "shots", "--question", "best"],
        ["init", "shots", "--mb", "0.001"],
        ["init", "shots", "--mb", "-1"],
        ["init", "x.bin"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, capsys):
    Path("x.bin").write_bytes(b"\x00\x01")
    assert run(*words) == 2
    told = capsys.readouterr().err.splitlines()
    assert len([line for line in told if line.startswith("error: ")]) == 1
    assert not [line for line in told if line.startswith("Traceback")]
    assert not Path("experiment.toml").exists()


def test_init_takes_flags_for_everything_and_the_file_runs(capsys):
    words = ["--question", "unseen", "--target", "night", "--privacy", "none", "--minutes", "60"]
    words += ["--mb-per-round", "50", "--mb", "500", "--name", "mine", "--size", "8", "--yes"]
    assert run("init", "shots", *words, "--out", "x.toml") == 0
    assert "method: fedavg + adapt-bn" in capsys.readouterr().out
    file = read_run_file(Path("x.toml"))
    assert (file.scenario["name"], file.scenario["unseen"]) == ("mine", "night")
    assert run("run", "x.toml", "--rounds", "1", "--quiet", "--out", "r", "--workers", "1") == 0
    assert Path("r/summary.json").exists()


def test_init_replaces_no_file_unless_it_is_told_to(capsys):
    Path("experiment.toml").write_text("kept")
    assert run("init", "shots") == 2
    assert "--force" in capsys.readouterr().err
    assert Path("experiment.toml").read_text() == "kept"
    assert run("init", "shots", "--force") == 0
    assert "fedshift doctor shots" in Path("experiment.toml").read_text()


def test_init_asks_what_is_open(monkeypatch, capsys):
    """An unknown answer is asked again; an empty one takes the default."""
    add("mine", Path("shots"))
    answers = iter(["mine", "9", "3", "dusk", "", "lots", "50", "", ""])
    asked = []

    def prompt(text, default=None, show_default=True):
        asked.append(text)
        return next(answers) or default

    monkeypatch.setattr(asking, "asks", lambda: True)
    monkeypatch.setattr(asking.typer, "prompt", prompt)
    assert run("init") == 0
    file = read_run_file(Path("experiment.toml"))
    assert file.method == "fedavg + adapt-bn"
    assert file.scenario["unseen"] == "dusk"
    assert len(asked) == 9
    told = capsys.readouterr().out
    assert "'9' is none of them" in told
    assert "'lots' is no number" in told


def test_with_yes_no_question_is_asked(monkeypatch):
    monkeypatch.setattr(asking, "asks", lambda: True)
    monkeypatch.setattr(asking.typer, "prompt", lambda *_, **__: pytest.fail("asked"))
    assert run("init", "shots", "--yes") == 0


def test_a_table_needs_its_columns_named(capsys):
    x, y = rows(0, n=60)
    lines = [
        f"{v[0]:.3f},{v[1]:.3f},{k},{'ab'[i % 2]}"
        for i, (v, k) in enumerate(zip(x, y, strict=True))
    ]
    Path("t.csv").write_text("\n".join(["p,q,ill,ward", *lines]) + "\n")
    assert run("init", "t.csv") == 2
    assert run("init", "t.csv", "--label", "ill", "--site", "ward") == 0
    assert run("run", "experiment.toml", "--rounds", "1", "--quiet", "--out", "r") == 0
