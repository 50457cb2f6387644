"""``fedshift data``: one line each, one line and exit code 2 for what cannot be done."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedshift.base.errors import FedshiftError
from fedshift.cli.data import app
from fedshift.cli.main import main
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


def test_remove_deletes_own_data_with_its_name_and_never_the_source(cats, tmp_path):
    before = sorted(p for p in cats.rglob("*"))
    run("add", "my-cats", cats, "--size", "4")
    run("prepare", "my-cats", "--size", "6")
    code, text = run("remove", "my-cats", "--size", "6")
    assert (code, text.strip()) == (0, f"removed: {tmp_path / 'home' / 'my-cats' / '6'}")
    assert json.loads(run("inspect", "my-cats", "--json")[1])["shape"] == [3, 4, 4]
    assert run("remove", "my-cats", "--size", "6")[0] == 2
    code, text = run("remove", "my-cats")
    assert code == 0
    assert f"removed: {tmp_path / 'home' / 'my-cats'}" in text
    assert "my-cats" not in run("list")[1]
    assert not list((tmp_path / "home").rglob("*.npy"))
    assert sorted(p for p in cats.rglob("*")) == before
    assert run("inspect", "my-cats")[0] == 2
    assert run("add", "my-cats", cats)[0] == 0  # the name is free again


def test_remove_of_ours_keeps_the_card_and_says_when_there_is_nothing():
    code, text = run("remove", "pacs")
    assert code == 2
    assert "dataset 'pacs' is not prepared; there is nothing to remove" in text
    assert "no dataset is called 'pasc'; did you mean pacs" in run("remove", "pasc")[1]


def test_remove_deletes_a_link_and_not_what_it_points_to(cats, tmp_path):
    run("add", "my-cats", cats)
    store = tmp_path / "home" / "my-cats"
    store.rename(tmp_path / "moved")
    store.symlink_to(tmp_path / "moved")
    assert run("remove", "my-cats")[0] == 0
    assert not store.is_symlink()
    assert list((tmp_path / "moved").rglob("*.npy"))


def test_a_size_that_cannot_fit_is_refused_and_the_option_raises_the_limit(cats, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["data", "add", "my-cats", str(cats), "--size", "100000"])
    text = capsys.readouterr().err
    assert "20 images at size 100000 would take about" in text
    assert "more than the limit of 8 GB" in text
    assert "(--size PIXELS, --max-gb" in text
    assert not list((tmp_path / "home").rglob("*.npy"))
    assert run("add", "my-cats", cats, "--max-gb", "0.001", "--size", "200")[0] == 2
    assert run("add", "my-cats", cats, "--max-gb", "0.1", "--size", "200")[0] == 0
    assert run("prepare", "my-cats", "--size", "100000")[0] == 2
    code, text = run("prepare", "my-cats", "--size", "201", "--max-gb", "0.001")
    assert (code, "limit of 0.001 GB" in text) == (2, True)


def test_an_image_above_the_limit_of_pixels_is_left_out_and_the_option_raises_it(cats):
    Image.new("RGB", (1100, 1000)).save(cats / "day" / "cat" / "large.png")
    limit = ("--max-megapixels", "1")
    text = run("add", "my-cats", cats, "--size", "4", *limit)[1]
    assert "left out: day/cat/large.png: has 1100x1000 pixels, more than the limit of 1 mil" in text
    assert "large.png" not in run("add", "my-cats", cats, "--size", "4")[1]
    assert "large.png" in run("prepare", "my-cats", "--size", "4", *limit)[1]


def test_a_csv_of_images_is_added_with_the_folder_that_its_paths_start_from(cats, tmp_path):
    lines = [
        f"{path.relative_to(cats)};{path.parent.name};{path.parent.parent.name}"
        for path in sorted(cats.rglob("*.png"))
    ]
    lines.insert(0, "path;diagnosis;site")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    columns = ("--label", "diagnosis", "--images", cats)
    code, text = run("add", "my-cats", tmp_path / "list.csv", *columns)
    assert (code, "left out" in text) == (0, False)
    found = json.loads(run("inspect", "my-cats", "--json")[1])
    assert found["counts"] == {"day": {"cat": 5, "dog": 5}, "night": {"cat": 5, "dog": 5}}
    code, text = run("add", "other", tmp_path / "list.csv", "--label", "diagnosis")
    assert code == 2 or "cannot be decoded" in text


def test_inspect_prints_near_duplicates_with_their_files(cats):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
    for n, place in enumerate(("day", "night")):
        image = Image.fromarray(pixels).resize((64, 64))
        image.save(cats / place / "cat" / "copy.jpg", quality=90 - 20 * n)
    run("add", "my-cats", cats, "--size", "64")
    code, text = run("inspect", "my-cats")
    assert code == 0
    assert "near-duplicates: 1 across domains" in text
    (line,) = (one for one in text.splitlines() if one.startswith("near-duplicate: "))
    assert "day: day/cat/copy.jpg" in line
    assert "night: night/cat/copy.jpg" in line
