"""The written file asks what was asked, fits what it may cost, and runs as it is."""

from __future__ import annotations

import re
import tomllib
from itertools import product

import numpy as np
import pytest
from guide_data import pictures, rows

import fedshift
from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.cli.main import main
from fedshift.data.library.datasets import add, own_cards
from fedshift.experiment.run import method_of, scenario_of
from fedshift.guide import first_run as module
from fedshift.guide.first_run import Choice, FirstRun, free_name
from fedshift.guide.machine import Cost
from fedshift.guide.rules import PRIVACIES, QUESTIONS, Wish, fit_bytes
from fedshift.runs.run_file import read_run_file


@pytest.fixture
def mine(save):
    """Three sites of images; c is the smallest."""
    add("mine", save(a=pictures(0), b=pictures(1), c=pictures(2, n=60)))
    return "mine"


def read(found: FirstRun, tmp_path):
    """The method and the scenario that the written file stands for."""
    file = read_run_file(found.write(tmp_path / "x.toml", force=True))
    return method_of(file, "x"), scenario_of(file)


@pytest.mark.parametrize(("question", "privacy"), list(product(QUESTIONS, PRIVACIES)))
def test_the_file_of_every_question_under_every_privacy_can_be_run(
    question, privacy, mine, tmp_path
):
    found = fedshift.first_run(mine, question, privacy=privacy)
    method, scenario = read(found, tmp_path)
    result = fedshift.run(method, scenario, rounds=1, quiet=True)
    assert set(result.summary["protocols"]) == set(scenario.protocols)
    assert (privacy == "none") == (privacy not in method)
    norm = {"local-dp": "group"}.get(privacy)
    assert scenario.backbone_options.get("norm") == norm
    assert (scenario.unseen == "c") == (question in ("unlabelled", "unseen"))


@pytest.mark.parametrize(
    ("question", "method", "protocols"),
    [
        ("single", "fedavg", ("global",)),
        ("per-site", "fedbn", ("personal",)),
        ("unlabelled", "fedavg + adapt-bn", ("unseen-adapted", "unseen")),
        ("unseen", "fedavg + adapt-bn", ("unseen", "unseen-adapted")),
    ],
)
def test_the_rule_of_thumb_is_the_documented_one(question, method, protocols, mine, tmp_path):
    found, scenario = read(fedshift.first_run(mine, question), tmp_path)
    assert (found, scenario.protocols) == (method, protocols)


@pytest.mark.parametrize("kind", ["images", "a table", "texts"])
def test_a_path_becomes_a_dataset_and_a_file_that_runs(kind, save, tmp_path):
    rng = np.random.default_rng(0)
    if kind == "images":
        path = save("shots", a=pictures(0), b=pictures(1))
    else:
        path = tmp_path / "shots"
        path.mkdir()
        for site in "ab":
            cells = rng.normal(size=40) if kind == "a table" else rng.integers(0, 9, 40)
            words = [
                f"{v:.3f}" if kind == "a table" else f"so {v} many words {i} here"
                for i, v in enumerate(cells)
            ]
            lines = [f"{w},{i % 2}" for i, w in enumerate(words)]
            (path / f"{site}.csv").write_text("\n".join(["what,label", *lines]) + "\n")
    found = fedshift.first_run(path, "per-site")
    assert found.data == "shots"
    assert own_cards()["shots"].origin == str(path)
    file = found.write(tmp_path / "x.toml")
    result = fedshift.run_file(file, rounds=1, quiet=True)
    assert result.outcome("personal") is not None


def test_every_value_of_the_file_has_its_reason_above_it(mine):
    found = fedshift.first_run(mine, "unseen", privacy="local-dp", mb=100)
    lines = found.text.splitlines()
    for key in ("method", "seed", "unseen", "protocols", "backbone_options", "rounds"):
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{key} ="))
        assert lines[place - 1].startswith("# "), key
    assert "Question: Which model is best at a site that nobody has seen yet?" in found.text
    assert "fedshift advise THIS-FILE     measures methods, with the question unseen;" in found.text
    assert "rule of thumb" in found.text
    assert max(map(len, lines)) <= 100


def typed(line: str) -> object:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(line.split())
    return end.value.code


def test_the_commands_in_the_file_can_be_typed(mine, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("fedshift.guide.advise.Advising.advice", lambda a, _: asked.append(a))
    monkeypatch.setattr("fedshift.cli.advise.show", lambda *_: None)
    file = fedshift.first_run(mine, "unseen").write(tmp_path / "x.toml")
    commands = re.findall(r"^#   fedshift (.*?)(?:  .*)?$", file.read_text(), re.M)
    assert [line.split()[0] for line in commands] == ["run", "doctor", "advise"]
    for line in commands[1:]:
        assert typed(line.replace("THIS-FILE", str(file))) == 0
    assert typed(f"advise {mine}") == 0
    given = [(a.contest.question.name, a.given.name, a.given.unseen) for a in asked]
    assert given == [("single", "mine", "c"), ("single", "mine", None)]
    assert typed(f"advise {mine} --scenario digits") == 2


def test_the_target_is_the_one_that_was_named_or_the_smallest(mine, tmp_path):
    assert read(fedshift.first_run(mine, "unseen"), tmp_path)[1].unseen == "c"
    assert read(fedshift.first_run(mine, "unlabelled", target="a"), tmp_path)[1].unseen == "a"
    with pytest.raises(UnknownNameError, match="no site is called 'd'"):
        fedshift.first_run(mine, "unseen", target="d")
    with pytest.raises(ConfigError, match="the question single has no target"):
        fedshift.first_run(mine, target="a")


def test_two_sites_are_too_few_to_hold_one_out(save):
    add("two", save(a=rows(0), b=rows(1)))
    with pytest.raises(ConfigError, match="one is held out: that takes three"):
        fedshift.first_run("two", "unseen")


def test_noise_on_vectors_takes_the_net_with_fewest_weights(save, tmp_path):
    add("two", save(a=rows(0), b=rows(1)))
    assert read(fedshift.first_run("two", privacy="local-dp"), tmp_path)[1].backbone == "linear"


# budgets


@pytest.mark.parametrize(
    ("limit", "codec"),
    [(2.0, ""), (1.999, "half"), (1.5, "quantise[bits=8]"), (1.14, "quantise[bits=4]")],
)
def test_the_mildest_codec_that_fits_a_round_is_taken(limit, codec):
    """One megabyte each way: 1 + 0.504, 1 + 0.256 and 1 + 0.132 with codecs."""
    fit = fit_bytes(Wish(mb_per_round=limit), 1e6, 1e6, 30)
    assert (fit.codec, fit.rounds) == (codec, 30)


def test_rounds_are_cut_only_where_no_codec_keeps_them_all():
    assert fit_bytes(Wish(mb=60), 1e6, 1e6, 30).codec == ""
    assert (fit_bytes(Wish(mb=40), 1e6, 1e6, 30)).codec == "quantise[bits=8]"  # 30 x 1.256 = 37.7
    cut = fit_bytes(Wish(mb=20), 1e6, 1e6, 30)
    assert (cut.codec, cut.rounds) == ("quantise[bits=4]", 17)  # 20 / 1.132 = 17.7
    assert "17 rounds in place of 30" in cut.why


def test_masked_updates_cannot_be_encoded():
    wish = Wish(mb=20, privacy="secure-aggregation")
    assert (fit_bytes(wish, 1e6, 1e6, 30).codec, fit_bytes(wish, 1e6, 1e6, 30).rounds) == ("", 10)
    with pytest.raises(ConfigError, match=r"1\.5 MB a round are too few: a round takes 2 MB"):
        fit_bytes(Wish(mb_per_round=1.5, privacy="secure-aggregation"), 1e6, 1e6, 30)


def test_a_budget_that_no_run_fits_is_refused():
    with pytest.raises(ConfigError, match=r"1 MB a round are too few: a round takes 1\.13 MB"):
        fit_bytes(Wish(mb_per_round=1.0), 1e6, 1e6, 30)
    with pytest.raises(ConfigError, match="3 MB in all are too few"):
        fit_bytes(Wish(mb=3), 1e6, 1e6, 30)


def test_the_bytes_of_a_round_are_those_of_the_ledger(mine, tmp_path):
    found = fedshift.first_run(mine, mb_per_round=1000)
    method, scenario = read(found, tmp_path)
    summary = fedshift.run(method, scenario, rounds=2, quiet=True).summary["bytes"]["train"]
    told = float(found.text.partition("A round moves about ")[2].split()[0])
    assert told == pytest.approx((summary["up"] + summary["down"]) / 2 / 1e6, rel=0.01)


def test_minutes_become_rounds_by_the_time_of_one(mine, tmp_path, monkeypatch):
    def cost(method, scenario):
        return Cost(method, "cnn", scenario.rounds, 3, 10.0 * scenario.rounds, 0, 0, 0, True)

    monkeypatch.setattr(module, "cost_of", cost)
    assert read(fedshift.first_run(mine, minutes=2), tmp_path)[1].rounds == 12
    assert read(fedshift.first_run(mine, minutes=100), tmp_path)[1].rounds == 30
    with pytest.raises(ConfigError, match=r"0\.4 minutes are too few: a round takes about 10 s"):
        fedshift.first_run(mine, minutes=0.4)


@pytest.mark.parametrize("wrong", [{"mb": 0}, {"mb_per_round": -1}, {"minutes": float("nan")}])
def test_a_budget_is_above_nothing(wrong):
    with pytest.raises(ConfigError, match="takes a number above 0"):
        Wish(**wrong)


def test_unknown_questions_and_privacies_are_refused(mine):
    with pytest.raises(UnknownNameError, match="no question is called 'best'"):
        fedshift.first_run(mine, "best")
    with pytest.raises(UnknownNameError, match="no kind of privacy is called 'much'"):
        fedshift.first_run(mine, privacy="much")


# names and files


def test_a_file_that_exists_is_kept(mine, tmp_path):
    found = fedshift.first_run(mine)
    (tmp_path / "x.toml").write_text("kept")
    with pytest.raises(ConfigError, match="exists; choose another file"):
        found.write(tmp_path / "x.toml")
    assert (tmp_path / "x.toml").read_text() == "kept"
    assert found.write(tmp_path / "x.toml", force=True).read_text() == found.text


def test_names_with_odd_characters_stay_values_and_comments():
    odd = 'a"b\\c\n[evil]\nx = 1\x1b'
    values = Choice("unseen", odd, odd), Choice("options", {"norm": odd}, "")
    found = FirstRun("mine", "single", Choice("method", "fedavg", odd), values, (odd,))
    told = tomllib.loads(found.text)
    assert told["scenario"] == {"unseen": odd, "options": {"norm": odd}}
    assert set(told) == {"method", "seed", "scenario"}


def test_a_path_gets_a_free_name_once(save, tmp_path):
    folder = save("my shots", a=rows(0), b=rows(1))
    assert free_name(folder) == "my-shots"
    add("shots", folder)
    assert free_name(folder) == "shots"
    assert free_name(tmp_path / "digits") == "digits-own"
    assert free_name(tmp_path / "???") == "data"


def test_what_is_for_a_path_is_refused_for_a_name(mine):
    with pytest.raises(ConfigError, match="size is for data at a path, and 'mine' is known"):
        fedshift.first_run(mine, size=8)
    with pytest.raises(UnknownNameError, match="no dataset, scenario or path is called"):
        fedshift.first_run("nothing-of-the-kind")


def test_large_images_are_added_smaller_and_that_is_told(save):
    x, y = pictures(0, n=24, side=12)
    big = np.repeat(np.repeat(x, 12, axis=1), 12, axis=2)  # 144 pixels
    from PIL import Image

    folder = save("shots", a=(x, y)).parent / "tree"
    for site in "ab":
        for i, (image, label) in enumerate(zip(big, y, strict=True)):
            place = folder / site / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{i}.png")
    found = fedshift.first_run(folder)
    assert any("images are large (144x144 pixels" in note for note in found.notes)
    assert own_cards()["tree"].size == 64


def test_bad_data_are_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no domain"):
        fedshift.first_run(tmp_path / "empty")
    assert own_cards() == {}
