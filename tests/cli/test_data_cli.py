"""``fedshift data``: one line each, one line and exit code 2 for what cannot be done."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from fedshift.base.errors import FedshiftError
from fedshift.cli.data import app
from fedshift.data.catalogue import CATALOGUE


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)


@pytest.fixture
def cats(tmp_path):
    for domain in ("day", "night"):
        for i, kind in enumerate(("cat", "dog")):
            folder = tmp_path / "cats" / domain / kind
            folder.mkdir(parents=True)
            for k in range(5):
                Image.new("RGB", (8, 8), (k, i, len(domain))).save(folder / f"{k}.png")
    return tmp_path / "cats"


def run(*args: str):
    """The result of a command; errors of ours as the command line would print them."""
    result = CliRunner().invoke(app, [str(a) for a in args])
    if isinstance(result.exception, FedshiftError):
        assert "\n" not in str(result.exception)
        return 2, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_list_has_one_line_per_dataset_with_licence_and_source():
    code, text = run("list")
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert code == 0
    assert "not prepared" in lines["pacs"]
    assert "hub flwrlabs/pacs" in lines["pacs"]
    assert "MNIST CC BY-SA 3.0" in lines["digits-4"]
    assert len(lines) == len(text.splitlines()) == len(CATALOGUE)


def test_add_then_list_then_inspect(cats, tmp_path):
    (cats / "day" / "cat" / "0.png").write_text("broken")
    code, text = run("add", "my-cats", cats)
    assert code == 0
    assert "left out: day/cat/0.png: is not an image; replace or delete the file" in text
    assert f"prepared: {tmp_path / 'home' / 'my-cats' / 'stored'}" in text
    assert "prepared (stored)" in run("list")[1].splitlines()[-1]
    code, text = run("inspect", "my-cats", "--verify", "--out", tmp_path / "out")
    assert code == 0
    for part in ("day", "night", "cat", "dog", "19", "duplicates: none", "checksums: all match"):
        assert part in text
    assert "left out: day/cat/0.png" in text
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["my-cats.html", "my-cats.png"]
    found = json.loads(run("inspect", "my-cats", "--json")[1])
    assert found["counts"] == {"day": {"cat": 4, "dog": 5}, "night": {"cat": 5, "dog": 5}}


def test_inspect_takes_the_only_size_there_is(cats):
    run("add", "my-cats", cats, "--size", "4")
    assert json.loads(run("inspect", "my-cats", "--json")[1])["shape"] == [3, 4, 4]
    run("prepare", "my-cats", "--size", "6")
    assert json.loads(run("inspect", "my-cats", "--size", "6", "--json")[1])["shape"] == [3, 6, 6]
    assert run("inspect", "my-cats", "--size", "5") == (
        2,
        "dataset 'my-cats' is prepared as 4, 6, not as 5; give --size or --set, or run "
        "`fedshift data prepare my-cats`",
    )


def test_prepare_from_a_folder_and_its_parent(cats, tmp_path):
    vlcs = tmp_path / "raw" / "vlcs"
    for name in ("CALTECH", "LabelMe", "SUN09", "PASCAL"):
        for kind in ("bird", "dog"):
            (vlcs / name / kind).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(vlcs / name / kind / "1.jpg")
    for source in (vlcs, vlcs.parent):
        code, text = run("prepare", "vlcs", "--from", source, "--size", "4")
        assert (code, "prepared: " in text) == (0, True)
    found = json.loads(run("inspect", "vlcs", "--size", "4", "--json")[1])
    assert list(found["splits"]) == ["caltech101", "labelme", "sun09", "voc2007"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["prepare", "pasc"], "no dataset is called 'pasc'; did you mean pacs"),
        (["prepare", "pacs"], "`fedshift data prepare pacs`, from the hub (flwrlabs/pacs; pip"),
        (["prepare", "pacs", "--from", "/none"], "/none does not exist; check the path"),
        (["prepare", "vlcs", "--from", "hub"], "no hub id is known for 'vlcs'"),
        (["prepare", "pacs", "--set", "angels=1"], "no option of dataset 'pacs' is called"),
        (["prepare", "pacs", "--size", "0"], "0 is not in the range"),
        (["inspect", "pacs"], "dataset 'pacs' is not prepared"),
        (["add", "x", "/none"], "/none does not exist; give a folder of images"),
        (["add", "pacs", "/tmp"], "a dataset is called 'pacs' already"),
    ],
)
def test_bad_input_is_one_line_and_code_2(args, expected, tmp_path):
    code, text = run(*args)
    assert code == 2
    assert expected in text
    assert not list((tmp_path / "home").rglob("*.npy"))
