"""What is opened, how much of it is looked at, what is said of the data, the machine and a run."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from guide_data import pictures, rows
from PIL import Image

import fedshift
from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.data.library import loaded
from fedshift.data.library.datasets import add, own_datasets
from fedshift.guide import doctor as guide
from fedshift.guide import machine, opening
from fedshift.guide.findings import CANNOT_SEE
from fedshift.testing import tiny_scenario

ROOT = Path(__file__).parents[2]


def look(data, **options):
    return fedshift.doctor(data, cost=False, **options)


def tree(folder: Path, sizes: dict[str, int], each: int = 12, deep: bool = False) -> Path:
    rng = np.random.default_rng(0)
    for domain, side in sizes.items():
        for k, kind in enumerate(("cat", "dog")):
            (folder / domain / kind).mkdir(parents=True)
            for i in range(each):
                x = rng.integers(60 * k, 60 * k + 90, (side, side))
                image = x.astype(np.uint16) * 100 if deep else x.astype(np.uint8)
                Image.fromarray(image).save(folder / domain / kind / f"{i}.png")
    return folder


def table(folder: Path, **sites: str) -> Path:
    folder.mkdir()
    for name, text in sites.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


# what is opened


def test_a_path_is_looked_at_and_nothing_is_registered_or_written(save, tmp_path):
    folder = save(a=rows(0), b=rows(1))
    found = look(folder)
    assert (found.source, found.kind, len(found.sites)) == ("path", "vectors", 2)
    assert own_datasets() == []
    assert not list((tmp_path / "home").rglob("*.json"))
    assert str(folder) not in {name for name, _ in loaded._LOADED}


def test_a_dataset_is_looked_at_as_its_path_is(save):
    folder = save(a=rows(0), b=rows(1))
    add("mine", folder)
    found, there = look("mine"), look(folder)
    assert found.source == "dataset"
    assert found.shift.told_apart == there.shift.told_apart
    assert found.shift.crossed == there.shift.crossed


def test_a_run_file_brings_its_method_and_its_unseen_site(save, tmp_path):
    add("mine", save(a=rows(0), b=rows(1), c=rows(2)))
    file = tmp_path / "x.toml"
    file.write_text('method = "fedbn"\n[scenario]\nname = "mine"\nunseen = "a"\nrounds = 2\n')
    found = fedshift.doctor(file)
    assert found.source == "run file"
    assert list(found.sites) == ["b", "c", "a"]
    assert found.cost.method == "fedbn"


def test_what_would_stop_a_run_is_told(save, tmp_path):
    add("mine", save(a=rows(0), b=rows(1)))
    file = tmp_path / "x.toml"
    file.write_text('method = "fedka"\n[scenario]\nname = "mine"\n')
    found = fedshift.doctor(file)
    assert found.cost is None
    assert any(
        line.startswith("A run would stop before its first round: ") for line in found.problems
    )


@pytest.mark.parametrize("name", ["nothing-like-it", "csac/pacs/sketsch"])
def test_a_name_that_is_nothing_is_one_line(name):
    with pytest.raises(UnknownNameError, match="no dataset, scenario or path is called"):
        look(name)


@pytest.mark.parametrize("name", ["./here", "/no/such", "gone.csv"])
def test_a_path_that_is_not_there_is_told_as_a_path(name):
    with pytest.raises(DataError, match="does not exist; check the path"):
        look(name)


def test_what_is_no_data_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.bin").write_bytes(b"\x00\x01")
    (tmp_path / "x.csv").write_bytes(bytes(range(200, 256)) * 9)
    for name in ("empty", "x.bin", "x.csv"):
        with pytest.raises(DataError) as told:
            look(tmp_path / name)
        assert "\n" not in str(told.value)


def test_columns_are_for_tables_at_a_path(save):
    add("mine", save(a=rows(0), b=rows(1)))
    with pytest.raises(ConfigError, match="label=num is for a table at a path"):
        look("mine", label="num")
    with pytest.raises(ConfigError, match="samples is 3; it takes at least 20"):
        look("mine", samples=3)


# bounds


def test_large_raw_files_are_prepared_first(save, monkeypatch):
    monkeypatch.setattr(opening, "LARGEST", 1e-7)
    with pytest.raises(DataError, match="prepare them with `fedshift data add NAME"):
        look(save(a=rows(0), b=rows(1)))


def test_of_many_images_some_are_decoded_and_all_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "DECODED", 15)
    found = look(tree(tmp_path / "t", {"a": 8, "b": 8}, each=20))
    assert {name: own.rows for name, own in found.sites.items()} == {"a": 40, "b": 40}
    assert found.shift.looked_at == {"a": 15, "b": 15}
    assert "looked at up to 1,000 training" in found.findings[0]


def test_no_more_samples_are_looked_at_than_asked_for(save):
    found = look(save(a=rows(0), b=rows(1)), samples=30)
    assert found.shift.looked_at == {"a": 60, "b": 60}  # training and test rows
    assert found.sites["a"].rows == 200


def test_copies_are_looked_for_among_a_part_if_there_are_many(save, monkeypatch):
    monkeypatch.setattr(guide, "COPIES", 100)
    assert look(save(a=rows(0), b=rows(1))).copies.looked_at == 100


def test_only_the_largest_sites_are_compared(save, monkeypatch):
    monkeypatch.setattr(guide, "SITES", 2)
    found = look(save(a=rows(0), b=rows(1, n=40), c=rows(2)))
    assert list(found.shift.looked_at) == ["a", "c"]
    assert list(found.sites) == ["a", "b", "c"]


def test_images_of_different_sizes_are_brought_to_one_and_that_is_told(tmp_path):
    found = look(tree(tmp_path / "t", {"a": 8, "b": 16}))
    assert found.shape == (3, 64, 64)
    assert "differ in size (8x8 to 16x16 pixels" in found.notes[0]
    assert look(tmp_path / "t", size=8).shape == (3, 8, 8)


def test_sixteen_bits_are_brought_to_eight_and_that_is_told(tmp_path):
    found = look(tree(tmp_path / "t", {"a": 8, "b": 8}, deep=True))
    assert any("more than 8 bits" in note for note in found.notes)


# what is said of tables and texts


def people(seed: int, shift: float, gaps: int, rows: int = 80) -> str:
    rng = np.random.default_rng(seed)
    age = rng.normal(50 + shift, 5, rows)
    cells = ["" if i < gaps else f"{v:.3f}" for i, v in enumerate(age)]
    sick = rng.permutation(rows) % 2
    pain = rng.choice(["low", "high"], rows)
    return "age,pain,label\n" + "\n".join(
        f"{a},{p},{'yes' if s else 'no'}" for a, p, s in zip(cells, pain, sick, strict=True)
    )


def test_columns_are_told_in_their_own_units_and_gaps_by_site(tmp_path):
    texts = {"a": people(0, 0, 0), "b": people(1, 0, 0), "c": people(2, 30, 24)}
    found = look(table(tmp_path / "t", **texts))
    assert found.kind == "a table"
    ages = [float(line.split(",")[0]) for line in texts["a"].splitlines()[1:]]
    mean, std = found.shift.statistics["a"]["age"]
    assert (mean, std) == (
        pytest.approx(np.mean(ages), rel=1e-4),
        pytest.approx(np.std(ages), rel=1e-4),
    )
    assert found.shift.missing["c"]["age"] == pytest.approx(0.3)
    assert "Column age lacks 30% of its cells at c, 0% where it is least." in found.findings
    assert found.shift.alike == (("a", "b"),)
    assert any(re.match(r"c differs in age \(higher: ", line) for line in found.findings)


def test_labels_that_differ_in_spelling_only_are_a_problem(tmp_path):
    text = "x,label\n" + "\n".join(f"{i / 7:.2f},{('Yes', 'yes', 'no')[i % 3]}" for i in range(60))
    found = look(table(tmp_path / "t", a=text, b=text))
    assert "Classes Yes and yes may be one; if they are, write them alike." in found.problems


def test_a_text_is_told_by_its_distinct_words(tmp_path):
    def texts(words: int) -> str:
        bags = [" ".join(f"w{(i * 7 + k) % 40} " * 2 for k in range(words)) for i in range(60)]
        lines = [f'"{bag} end of text {i}",{i % 2}' for i, bag in enumerate(bags)]
        return "text,label\n" + "\n".join(lines)

    found = look(table(tmp_path / "t", long=texts(12), short=texts(4)))
    assert found.kind == "texts"
    long, short = (found.shift.statistics[n]["text (distinct words)"][0] for n in ("long", "short"))
    assert long == pytest.approx(16, abs=0.7)  # 12 and "end of text", its number if it has 2 digits
    assert short == pytest.approx(8, abs=0.7)


def test_sites_without_training_rows_and_single_sites_are_problems(save):
    found = look(save(a=rows(0, n=24)))
    assert any(line.startswith("There is one site") for line in found.problems)
    assert "a has 18 training rows only; its numbers say little." in found.problems
    assert found.shift.told_apart is None
    assert found.shift.pairs == {}


def test_clients_with_other_labels_than_their_sites_are_told():
    partition = {"kind": "pathological", "classes_per_client": 1}
    scenario = tiny_scenario(partition=partition)
    opened = opening._opened("tiny", "scenario", scenario, "fedavg")
    clients = guide._clients(opened)
    assert len(clients) > len(scenario.domains)
    assert max(one.here for one in clients) == 1


# the machine and a run


def test_every_extra_that_users_install_is_looked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for_us = {"fuzz", "mutation", "docs", "dev"}
    assert set(machine.EXTRAS) == set(project["optional-dependencies"]) - for_us


def test_a_container_limits_the_memory(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 700 kB\nX: 1\n")
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CONTAINER", tmp_path / "limit")
    assert machine._memory() == (1024000, 716800)
    (tmp_path / "limit").write_text("512000\n")
    assert machine._memory() == (512000, 512000)
    (tmp_path / "limit").write_text("max\n")
    assert machine._memory() == (1024000, 716800)
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "none")
    assert machine._memory()[1] is None


def test_a_short_warm_up_is_played_and_a_long_one_is_judged_from_a_batch(save, monkeypatch):
    folder = save(a=rows(0), b=rows(1))
    found = fedshift.doctor(folder)
    assert found.cost.measured
    assert found.cost.clients == 2
    monkeypatch.setattr(machine, "LONGEST", 0.0)
    judged = fedshift.doctor(folder).cost
    assert not judged.measured
    assert judged.up == pytest.approx(found.cost.up, rel=0.01)
    assert any("judged from one batch" in line for line in fedshift.doctor(folder).findings)


def test_the_time_of_a_part_is_scaled_to_the_whole(monkeypatch):
    scenario = tiny_scenario(rounds=2)
    monkeypatch.setattr(machine, "LONGEST", 0.0)
    monkeypatch.setattr(machine, "_batch_seconds", lambda *_: 0.5)
    one, four = (machine.cost_of("fedavg", scenario, scale).seconds for scale in (1.0, 4.0))
    assert four == pytest.approx(4 * one)


# what is handed out


def test_the_summary_is_json_and_the_sentences_are_its_text(save):
    found = look(save(a=pictures(0), b=pictures(1)))
    told = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert told["shift"]["pairs"].keys() == {"a / b"}
    assert told["findings"] == list(found.findings)
    assert str(found).splitlines() == [*found.problems, *found.findings]
    assert set(CANNOT_SEE) < set(found.cannot_see)


def test_the_picture_shows_matrices_labels_and_measures(save, tmp_path):
    dark, y = pictures(2)
    found = look(save(a=pictures(0), b=(dark // 2, y)))
    figure = found.figure()
    titles = [axes.get_title(loc="left") for axes in figure.get_axes()]
    assert titles[:3] == [
        "linear model: accuracy in %", "two sites told apart, % (50: alike)", "labels by site",
    ]  # fmt: skip
    assert "brightness" in titles[3:]
    written = {
        kind: found.plot(tmp_path / f"x.{kind}").read_bytes() for kind in ("png", "svg", "pdf")
    }
    assert written["png"][:4] == b"\x89PNG"
    assert found.plot(tmp_path / "again.png").read_bytes() == written["png"]
    with pytest.raises(ConfigError, match="a figure is one of"):
        found.plot(tmp_path / "x.bmp")


def test_the_picture_of_numbers_and_of_many_classes_is_drawn(save, tmp_path):
    text = "x,label\n" + "\n".join(f"{i / 7:.2f},{i * 1.5}" for i in range(60))
    assert look(table(tmp_path / "t", a=text, b=text)).figure().get_axes()
    many = "x,label\n" + "\n".join(f"{i % 17},k{i % 15}" for i in range(150))
    axes = look(table(tmp_path / "m", a=many, b=many)).figure().get_axes()[2]
    assert axes.get_legend().get_texts()[-1].get_text() == "others"
