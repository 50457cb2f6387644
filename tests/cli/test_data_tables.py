"""``fedshift data add`` for tables: every option is typed here, as the documentation has it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedshift.base.errors import FedshiftError
from fedshift.cli.data import app
from fedshift.cli.options import flag


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)


@pytest.fixture
def wards(tmp_path):
    """A semicolon csv with decimal commas; its two hospitals write the outcome differently."""
    lines = ["patient_id;hospital;age;crp;code;seen;note;outcome"]
    for i in range(40):
        site = ("north", "south")[i % 2]
        outcome = (("sick", "well") if site == "south" else ("ill", "fine"))[i // 2 % 2]
        crp = "-9" if i % 8 == 0 else f"{i % 7},{i % 3}5"
        note = f"comes for visit number {i} and feels {outcome}"
        lines.append(
            f"p{i};{site};{50 + i % 11};{crp};{i % 3};{i % 28 + 1}.3.2020;{note};{outcome}"
        )
    path = tmp_path / "wards.csv"
    path.write_text("\n".join(lines))
    return path


def run(*args: object):
    result = CliRunner().invoke(app, [str(a) for a in args])
    if isinstance(result.exception, FedshiftError):
        options = ", ".join(map(flag, result.exception.options))
        return 2, f"{result.exception}; {options}"
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


SAME = ("--rename-label", "ill=sick", "--rename-label", "fine=well")
BASE = ("--label", " outcome ", "--site", "hospital")


def inspected(name="wards"):
    return json.loads(run("inspect", name, "--json")[1])


def test_labels_of_two_sites_that_differ_are_shown_with_the_option(wards):
    code, text = run("add", "wards", wards, *BASE)
    assert code == 2
    assert "sites share no label: north has fine, ill; south has sick, well" in text
    assert text.endswith("--rename-label OLD=NEW")


def test_every_option_of_tables(wards):
    code, text = run(
        "add", "wards", wards, *BASE, *SAME, "--objective", "classification", "--drop", "note",
        "--categorical", "code", "--numeric", "age", "--date", "seen", "--missing", "-9",
        "--impute", "mean", "--scale", "standard", "--statistics", "site", "--may-drop", "0.1",
    )  # fmt: skip
    assert (code, "note: column 'patient_id' is id-like" in text) == (0, True)
    found = inspected()
    roles = {name: one["role"] for name, one in found["columns"]["roles"].items()}
    assert roles == {
        "patient_id": "id-like", "age": "numeric", "crp": "numeric", "code": "categorical",
        "seen": "date", "note": "dropped",
    }  # fmt: skip
    assert found["columns"]["roles"]["crp"]["missing"] == 5
    assert found["columns"]["statistics"] == "site"
    assert found["counts"] == {"north": {"sick": 10, "well": 10}, "south": {"sick": 10, "well": 10}}
    assert found["shape"] == [7]  # age, crp, crp missing, three codes, day


def test_texts_and_a_schema_file(wards, tmp_path):
    schema = tmp_path / "wards.toml"
    schema.write_text(
        'label = "outcome"\ndomain = "hospital"\nwords = 32\ndrop = ["code", "seen", "crp"]\n'
        '[rename_label]\nill = "sick"\nfine = "well"\n'
    )
    args = ("--schema", schema, "--text", "note", "--encoder", "words")
    assert run("add", "wards", wards, *args)[0] == 0
    assert inspected()["shape"] == [33]


def test_inspect_shows_roles_target_and_what_leaves_a_site(wards):
    run("add", "wards", wards, *BASE, *SAME)
    code, text = run("inspect", "wards")
    assert code == 0
    for line in (
        "target: outcome (classification)",
        "column patient_id: id-like (its name, and 40 values in 40 rows)",
        "column note: text (8 words per cell)",
        "statistics: federated",
        "leaves each site: per column of numbers: rows, missing cells, sum, sum of squares",
    ):
        assert line in text.splitlines()


def test_a_number_to_predict_is_said(wards):
    code, text = run("add", "wards", wards, "--label", "crp", "--domain", "hospital")
    assert (code, "column 'crp' holds many different numbers: regression" in text) == (0, True)
    assert inspected()["objective"] == "regression"
    assert "target at north: mean" in run("inspect", "wards")[1]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--impute", "guess"], "impute of a table: Input should be 'median', 'mean' or 'drop'"),
        (["--objective", "ranking"], "objective of a table: Input should be 'auto'"),
        (["--statistics", "pooled"], "statistics of a table: Input should be 'federated' or"),
        (["--label", "outcom"], "has no column 'outcom'"),
        (["--drop", "agee"], "no column is called 'agee'; did you mean age"),
        (["--encoder", "bert"], "neither words, minilm nor a folder"),
        (["--schema", "/none.toml"], "/none.toml cannot be read"),
        (["--missing", "-9", "--impute", "drop"], "--impute median, --may-drop SHARE"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(args, expected, wards, tmp_path):
    given = [*BASE[2:], *SAME] + ([] if "--label" in args else list(BASE[:2]))
    code, text = run("add", "wards", wards, *given, *args)
    assert (code, expected in text) == (2, True), text
    assert not list((tmp_path / "home").rglob("*.npy"))
