"""Own data: a changed source is another run, and a split that comes with the data is used."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedshift
from fedshift.base.errors import ConfigError, DataError, FedshiftError, RunError
from fedshift.cli import main
from fedshift.core.config import NAMED, configure
from fedshift.core.scenario import Scenario
from fedshift.data.dealing.splits import TEST
from fedshift.data.library.datasets import add
from fedshift.data.store import checksum, fingerprint, read_domain, write_domain
from fedshift.engine.federation import data_fingerprint, describe_split, federate
from fedshift.experiment.compare import compare
from fedshift.experiment.identity import configure_run
from fedshift.experiment.run import execute, run
from fedshift.experiment.scenario import KINDS, find_scenario, scenario_from
from fedshift.experiment.session import Options, prepare
from fedshift.report.load import load_comparison, load_run
from fedshift.testing import tiny, tiny_scenario


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)


def table(path: Path, rows: int = 40, **columns: object) -> list[list[str]]:
    """A csv of two hospitals; the label is the sign of the first number."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).round(3)
    head = ["a", "b", "c", "label", "domain", *columns]
    body = [
        [*map(str, row), "yes" if row[0] > 0 else "no", ("va", "hu")[i % 2]]
        + [str(value[i]) for value in columns.values()]
        for i, row in enumerate(x)
    ]
    write(path, [head, *body])
    return [head, *body]


def write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def name_of(scenario: str = "heart") -> str:
    return configure_run("fedavg", find_scenario(scenario))[0].name


# identity


def test_one_byte_of_a_source_changes_the_runs_name_and_nothing_does_not(tmp_path):
    rows = table(tmp_path / "heart.csv")
    add("heart", tmp_path / "heart.csv")
    first = name_of()
    add("heart", tmp_path / "heart.csv")
    assert name_of() == first
    rows[1][3] = "no" if rows[1][3] == "yes" else "yes"  # a label
    write(tmp_path / "heart.csv", rows)
    assert name_of() == first  # what is prepared has not changed yet
    add("heart", tmp_path / "heart.csv")
    second = name_of()
    rows[2][0] = str(float(rows[2][0]) + 0.001)  # an input
    write(tmp_path / "heart.csv", rows)
    add("heart", tmp_path / "heart.csv")
    assert len({first, second, name_of()}) == 3


@pytest.mark.parametrize("changed", ["x", "y", "split", "classes"])
def test_one_byte_of_prepared_data_changes_the_fingerprint(changed):
    held = tiny()["dark"]
    before = fingerprint({"dark": held})
    assert fingerprint({"dark": replace(held, x=held.x.clone(), drawn=True)}) == before
    assert fingerprint({"night": held}) != before
    if changed == "classes":
        other = ("A", *held.classes[1:])
    else:
        other = getattr(held, changed).clone()
        other.view(-1)[-1] ^= 1
    assert fingerprint({"dark": replace(held, **{changed: other})}) != before


def test_a_changed_source_is_trained_again_and_older_runs_are_told(tmp_path, capsys):
    rows = table(tmp_path / "heart.csv")
    add("heart", tmp_path / "heart.csv")
    out = tmp_path / "runs"
    old = compare("local", "heart", out=out, rounds=1, workers=1, quiet=True)
    assert old.notes == []
    for row in rows[1:]:
        row[3] = {"yes": "no", "no": "yes"}[row[3]] if float(row[1]) > 0 else row[3]
    write(tmp_path / "heart.csv", rows)
    _, report = add("heart", tmp_path / "heart.csv")
    assert "the content has changed" in report["notes"][0]
    new = compare("local", "heart", out=out, rounds=1, workers=1, quiet=True)
    fresh_folder = compare("local", "heart", out=tmp_path / "b", rounds=1, workers=1, quiet=True)
    names = [c.results[0].config.name for c in (old, new, fresh_folder)]
    assert names[0] != names[1] == names[2]
    assert new.results[0].summary["protocols"] == fresh_folder.results[0].summary["protocols"]
    assert len(new.notes) == 1
    assert names[0] in new.notes[0]
    assert "older data" in new.notes[0]
    # the two are never averaged as if they were seeds of one thing
    both = load_comparison(out)
    assert len(both.scenarios) == 2
    assert all(len(both.of("local", s)) == 1 for s in both.scenarios)
    with pytest.raises(SystemExit):
        main(
            [
                *("compare", "--method", "local", "--scenario", "heart", "--rounds", "1"),
                *("--out", str(out), "--workers", "1"),
            ]
        )
    assert f"older data: heart: 1 runs in {out}" in capsys.readouterr().err


def test_data_added_over_other_content_are_kept_and_said(tmp_path, capsys):
    rows = table(tmp_path / "heart.csv")
    add("heart", tmp_path / "heart.csv")
    before = data_fingerprint(find_scenario("heart"))
    labels = read_domain(tmp_path / "home" / "heart" / "stored" / "va").y.tolist()
    rows[1][3] = "no" if rows[1][3] == "yes" else "yes"
    write(tmp_path / "heart.csv", rows)
    with pytest.raises(SystemExit):
        main(["data", "add", "heart", str(tmp_path / "heart.csv")])
    kept = tmp_path / "home" / "heart" / ".versions"
    told = capsys.readouterr().err
    now = data_fingerprint(find_scenario("heart"))
    assert f"note: the content has changed: it was {before} and is {now}" in told
    assert [p.name for p in kept.iterdir()] == [f"stored-{before}"]
    assert read_domain(kept / f"stored-{before}" / "va", verify=True).y.tolist() == labels
    with pytest.raises(SystemExit):
        main(["data", "add", "heart", str(tmp_path / "heart.csv")])
    assert "content has changed" not in capsys.readouterr().err
    assert len(list(kept.iterdir())) == 1


def test_a_source_that_cannot_be_read_leaves_no_version_behind(tmp_path):
    table(tmp_path / "heart.csv")
    add("heart", tmp_path / "heart.csv")
    (tmp_path / "heart.csv").write_text("a,label\nx,y\n")
    with pytest.raises(DataError):
        add("heart", tmp_path / "heart.csv")
    assert not (tmp_path / "home" / "heart" / ".versions").exists()
    assert data_fingerprint(find_scenario("heart"))


def test_a_domain_has_the_same_checksum_in_memory_and_on_disk(tmp_path):
    for name, domain in tiny().items():
        write_domain(tmp_path / name, domain)
        assert checksum(read_domain(tmp_path / name)) == checksum(domain)
    dark, bright = list(tiny().values())[:2]
    assert checksum(dark) != checksum(bright)


def test_an_unfinished_run_of_other_data_is_not_continued(tmp_path):
    rows = table(tmp_path / "heart.csv")
    add("heart", tmp_path / "heart.csv")
    config, whole = configure_run("fedavg", find_scenario("heart", rounds=2))
    prepare(config, whole, tmp_path / "run").advance()
    rows[1][3] = "no" if rows[1][3] == "yes" else "yes"
    write(tmp_path / "heart.csv", rows)
    add("heart", tmp_path / "heart.csv")
    with pytest.raises(DataError, match=r"have changed: run .* is of .* start a new run"):
        execute(config, whole, tmp_path / "run", Options(resume=True))
    with pytest.raises(RunError, match="holds the same run on other data"):
        run("fedavg", "heart", rounds=2, out=tmp_path / "run", resume=True, quiet=True)


def test_a_run_from_before_fingerprints_opens_resumes_and_keeps_its_name(tmp_path):
    whole = run("fedbn", tiny_scenario(rounds=2), out=tmp_path / "new", quiet=True)
    old, method = configure("fedbn", tiny_scenario(rounds=2))  # as configured before
    prepare(old, method, tmp_path / "old").advance()
    held = json.loads((tmp_path / "old" / "config.json").read_text())
    del held["run"]["data"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(held))
    again = run("fedbn", tiny_scenario(rounds=2), out=tmp_path / "old", resume=True, quiet=True)
    assert again.config.name == old.name == held["name"]
    assert again.summary["protocols"] == whole.summary["protocols"]
    assert load_run(tmp_path / "old").config.data == ""
    assert whole.config.name != old.name


def test_an_option_that_scenarios_get_later_does_not_rename_runs_that_do_not_use_it():
    class Later(Scenario):
        later: int = 3

    base = tiny_scenario()
    values = base.model_dump()
    config, _ = configure("fedavg", base)
    same, other = (
        config.model_copy(update={"scenario": Later(**values, **more)})
        for more in ({}, {"later": 4})
    )
    assert same.fingerprint == config.fingerprint != other.fingerprint
    assert set(Scenario.model_fields) >= NAMED


# splits


def holding(scenario: str, **changes: object) -> dict[str, tuple[int, int, int]]:
    made = federate(find_scenario(scenario, **changes), 0)
    return {
        name: (len(site.data.train), len(site.data.val), len(site.data.test))
        for name, site in made.sites.items()
    }


def test_the_split_of_an_npz_is_used_and_said(tmp_path):
    rng = np.random.default_rng(0)
    split = np.repeat([0, 1, 2], [20, 15, 5])  # train, test, validation
    x = rng.normal(size=(40, 3))
    x[:, 2] = np.where(split == 0, 1, -1)  # to recognise training rows
    np.savez(tmp_path / "site.npz", x=x, y=np.arange(40) % 2, split=split)
    add("mine", tmp_path / "site.npz")
    assert holding("mine") == {"site-0": (20, 5, 15)}
    made = federate(find_scenario("mine"), 0).sites["site-0"].data
    assert (made.train.x[made.train.rows][:, 2] == 1).all()
    assert (made.test.x[made.test.rows][:, 2] == -1).all()
    result = run("fedavg", "mine", rounds=1, quiet=True)
    assert result.summary["confounders"]["split"] == "given with the data"
    assert result.summary["samples"] == {"site": {"train": 20, "val": 5, "test": 15}}
    other = run("fedavg", "mine", rounds=1, quiet=True, split={"kind": "random"})
    assert other.summary["confounders"]["split"] == (
        "random, 80/10/10 % of all rows; the split given with the data is not used"
    )


def test_a_split_code_that_means_nothing_is_refused(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.zeros((3, 2)), y=[0, 1, 0], split=[0, 1, 7])
    with pytest.raises(DataError, match="split holds 7; it takes 0 train, 1 test, 2 validation"):
        add("mine", tmp_path / "s.npz")


def test_the_split_column_of_a_csv_is_used(tmp_path):
    marks = ["train"] * 20 + ["test"] * 12 + ["val"] * 8
    table(tmp_path / "heart.csv", split=marks)
    add("heart", tmp_path / "heart.csv")
    assert holding("heart") == {"hu-0": (10, 4, 6), "va-0": (10, 4, 6)}


def test_folders_called_train_val_and_test_are_used(tmp_path):
    for part, count in (("train", 6), ("val", 2), ("test", 4)):
        for label in ("cat", "dog"):
            folder = tmp_path / "pets" / "day" / part / label
            folder.mkdir(parents=True)
            for k in range(count):
                Image.new("RGB", (8, 8), (k, count, len(label))).save(folder / f"{k}.png")
    add("pets", tmp_path / "pets", size=8)
    assert holding("pets") == {"day-0": (12, 4, 8)}


def test_a_drawn_split_is_the_one_that_inspect_shows_and_is_said(tmp_path):
    table(tmp_path / "heart.csv", rows=100)
    add("heart", tmp_path / "heart.csv")
    stored = {
        d.name: (d.split == TEST).sum()
        for d in (read_domain(tmp_path / "home" / "heart" / "stored" / n) for n in ("va", "hu"))
    }
    assert {c: n[2] for c, n in holding("heart").items()} == {
        f"{name}-0": count for name, count in stored.items()
    }
    result = run("fedavg", "heart", rounds=1, quiet=True)
    assert result.summary["confounders"]["split"] == (
        "20 % per class drawn for the test, as the data mark none; validation 10 % of the "
        "training rows"
    )


def test_a_split_of_numbers_to_predict_speaks_of_no_classes(tmp_path):
    rows = [["cost", "a", "domain"]]
    rows += [[f"{i * 1.7 + 0.3:.1f}", str(i * i % 11), ("va", "hu")[i % 2]] for i in range(60)]
    write(tmp_path / "costs.csv", rows)
    add("costs", tmp_path / "costs.csv", table={"label": "cost"})
    scenario = find_scenario("costs")
    assert scenario.objective == "regression"
    assert describe_split(scenario) == (
        "20 % drawn for the test, as the data mark none; validation 10 % of the training rows"
    )
    others = [scenario_from("costs", None, None, {"split.kind": kind}) for kind in KINDS["split"]]
    for made in [scenario, *others]:
        assert "class" not in describe_split(made)
        assert "class" not in made.confounders()["split"]
    held_out = find_scenario("costs", unseen="va", unseen_split={"kind": "per-class"})
    assert "class" not in describe_split(held_out)


def test_results_on_tables_speak_of_no_images(tmp_path):
    table(tmp_path / "heart.csv")
    add("heart", tmp_path / "heart.csv")
    found = run("fedavg", "heart", rounds=1, quiet=True).summary["confounders"]
    assert "images" not in found
    assert "pixels" not in str(found)
    assert "images" in run("fedavg", tiny_scenario(), rounds=1, quiet=True).summary["confounders"]


@pytest.mark.parametrize(
    ("owner", "kind"), [(owner, kind) for owner, kinds in KINDS.items() for kind in kinds]
)
def test_every_kind_of_split_and_partition_can_be_typed(owner, kind, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["partition", "digits", "--set", f"scenario.{owner}.kind={kind}"])
    told = capsys.readouterr()
    if (owner, kind) == ("split", "all-test"):  # nothing is left to train on
        assert stop.value.code == 2
        assert "training sample" in told.err
    else:
        assert (stop.value.code or 0) == 0, told.err
    made = scenario_from("digits", None, None, {f"{owner}.kind": kind})
    expected = find_scenario("digits").partition if kind == "per-domain" else KINDS[owner][kind]()
    assert getattr(made, owner) == expected


def test_another_backbone_begins_at_its_own_defaults():
    held = find_scenario("csac/pacs/sketch").backbone_options
    assert held == {"width": 0.25, "bottleneck": 64}
    same = scenario_from("csac/pacs/sketch", None, None, {"backbone_options": {"width": 0.5}})
    assert same.backbone_options == held | {"width": 0.5}
    for given in ({}, {"hidden": 8}):
        changes = {"backbone": "mlp"} | ({"backbone_options": given} if given else {})
        made = scenario_from("csac/pacs/sketch", None, None, changes)
        assert (made.backbone, made.backbone_options) == ("mlp", given)


def test_another_kind_drops_the_values_of_the_old_one_and_keeps_those_typed():
    changes = {"partition.alpha": "0.1", "partition.kind": "dirichlet"}
    made = scenario_from("digits", None, None, changes)
    assert made.partition.alpha == 0.1
    assert not hasattr(made.partition, "samples_per_client")
    kept = scenario_from("digits", None, None, {"partition.kind": "per-domain"})
    assert kept.partition.samples_per_client == 40
    with pytest.raises(FedshiftError, match="no option of partition 'dirichlet' is called 'apha'"):
        scenario_from("digits", None, None, {"partition.kind": "dirichlet", "partition.apha": 1})
    with pytest.raises(FedshiftError, match=r"no kind of scenario.split .* did you mean given"):
        scenario_from("digits", None, None, {"split.kind": "givn"})


# the unseen domain


def test_naming_the_unseen_domain_is_enough(tmp_path):
    rows = table(tmp_path / "heart.csv", rows=60)
    for i, row in enumerate(rows[1:]):
        row[4] = ("va", "hu", "ch")[i % 3]
    write(tmp_path / "heart.csv", rows)
    add("heart", tmp_path / "heart.csv")
    made = scenario_from("heart", None, None, {"unseen": "va"})
    assert made.domains == ("ch", "hu")
    assert made.protocols == ("personal", "global", "unseen", "unseen-adapted")
    result = run("fedavg", "heart", unseen="va", rounds=1, quiet=True)
    assert list(result.outcome("unseen").metrics.domains) == ["va"]
    explicit = find_scenario("heart", unseen="va", protocols=("unseen",), domains=("hu",))
    assert (explicit.domains, explicit.protocols) == (("hu",), ("unseen",))
    with pytest.raises(ConfigError, match="at least one domain to train on"):
        explicit.change(unseen="hu", domains=())


def test_another_unseen_domain_changes_places_with_the_old_one():
    made = tiny_scenario().change(unseen="dark")
    assert (made.domains, made.unseen) == (("tinted", "bright"), "dark")


# words


def test_python_calls_that_were_confusing_are_clear(tmp_path):
    table(tmp_path / "heart.csv")
    add("heart", tmp_path / "heart.csv")
    found = compare("fedavg", "heart", rounds=1, workers=1, quiet=True)
    assert [(r.label, r.config.scenario.name) for r in found.results] == [("fedavg", "heart")]
    result = found.results[0]
    with pytest.raises(FedshiftError, match="no protocol is called 'persnal'; did you mean pers"):
        result.curve("persnal")
    with pytest.raises(FedshiftError, match="no protocol is called 'persnal'"):
        result.outcome("persnal")
    with pytest.raises(FedshiftError, match="no number of a score is called 'awg'"):
        result.curve("personal", "awg")
    assert result.curve("unseen") == []  # a protocol, but not of this scenario
    with pytest.raises(ConfigError, match="the method is a list; a run has one"):
        run(["fedavg"], "heart")
    with pytest.raises(ConfigError, match=r"seeds is 3; it takes a list .* or range\(3\)"):
        compare("fedavg", "heart", seeds=3)
    with pytest.raises(FedshiftError, match="no scenario or dataset is called 'haert'"):
        fedshift.run("fedavg", "haert")
