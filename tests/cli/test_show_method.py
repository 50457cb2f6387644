"""``fedshift list methods`` and ``fedshift show METHOD``."""

from __future__ import annotations

import json

import pytest

from fedshift.cli import catalogue, main
from fedshift.core.registry import METHODS


@pytest.fixture
def typed(capsys):
    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        told = capsys.readouterr()
        return int(stop.value.code or 0), told.out, told.err

    return command


def test_methods_are_listed_by_group_in_lines_of_80_columns(typed):
    _, out, _ = typed("list", "methods")
    lines = out.splitlines()
    headings = [line.rstrip(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert headings == [g for g in catalogue.ORDER if g in headings]  # our own are all known
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted(METHODS.entries())
    assert max(map(len, lines)) <= 80


def test_unknown_groups_come_last_and_no_group_is_called_other():
    rows = [
        {"name": n, "group": g}
        for n, g in zip("abcd", ["", "zoo", "privacy", "reference"], strict=True)
    ]
    assert list(catalogue.by_group(rows)) == ["reference", "privacy", "zoo", "other"]


def test_verbose_adds_papers_and_settings_and_json_has_the_group(typed):
    short, long = typed("list", "methods")[1], typed("list", "methods", "--verbose")[1]
    assert "MLSys 2020" in long
    assert "mu=0.01" in long
    assert "MLSys" not in short
    rows = {row["name"]: row for row in json.loads(typed("list", "--json")[1])}
    assert rows["fedprox"]["group"] == "optimisation"


def test_a_line_that_is_too_long_is_cut_between_words():
    assert catalogue._cut("  fedavg  mean of models", 20) == "  fedavg  mean of…"
    assert catalogue._cut("  fedavg  mean", 18) == "  fedavg  mean"


def test_a_method_is_shown_with_everything_that_is_declared(typed):
    code, out, _ = typed("show", "scaffold")
    assert code == 0
    for words in (
        "Karimireddy",
        "Use it",
        "Not for",
        "control-variates (part)",
        "Algorithm 1, line 10: ControlVariates.edit_gradients (methods.scaffold)",
        "local optimiser: sgd",
        "a mean of gradients",
        "up: 272.5 kB, 1.99 times FedAvg's",
        "not with",
    ):
        assert words in out, words
    assert max(map(len, out.splitlines())) <= 100


def test_bytes_follow_the_backbone(typed):
    small, large = (
        json.loads(typed("show", "fedavg", "--backbone", name, "--json")[1])["traffic"]
        for name in ("cnn", "lenet")
    )
    assert (small["backbone"], large["backbone"]) == ("cnn", "lenet")
    assert small["totals"] != large["totals"]
    assert large["totals"] == large["fedavg"]


def test_a_word_that_is_neither_method_nor_run_is_one_line(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = typed("show", "fedprx")
    assert code == 2
    assert "no method, part or run is called 'fedprx'; did you mean fedprox" in error
    (tmp_path / "empty").mkdir()
    for word in ("empty", "some/where"):
        code, _, error = typed("show", word)
        assert (code, error.count("\n")) == (2, 1)
        assert word in error


def test_a_folder_of_runs_wins_over_a_method_of_its_name(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    assert "reference" in typed("show", "local")[1]  # no runs in it: the method
    words = ["run", "--method", "local", "--rounds", "1", "--transport", "inprocess", "--quiet"]
    assert typed(*words, "--out", "local/run")[0] == 0
    assert "reference" not in typed("show", "local")[1]
    code, _, error = typed("show", "local", "--backbone", "cnn")
    assert code == 2
    assert "--backbone are for methods" in error
