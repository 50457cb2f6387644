"""Advice: who is better by construction is taken, and if nobody is, FedAvg is."""

from __future__ import annotations

import io
import json
import math
from collections import Counter

import pytest
from planted import planted
from rich.console import Console

import fedshift
from fedshift import Part, register
from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.core.method import Method
from fedshift.core.registry import METHODS
from fedshift.experiment.compare import Job, played
from fedshift.experiment.expectation import Estimate
from fedshift.experiment.identity import configure_run
from fedshift.experiment.listener import Listener
from fedshift.experiment.run import method_of, scenario_of
from fedshift.guide.advise_contest import Lane, admitted, candidates
from fedshift.guide.advise_lines import HEADS
from fedshift.guide.advise_result import chosen
from fedshift.guide.shortlist import ALONE, QUESTIONS, REFERENCE, Contender, Shortlist
from fedshift.report.cells import Cell
from fedshift.report.fitted import FittedTable
from fedshift.runs.record import read_lines
from fedshift.runs.run_file import read_run_file
from fedshift.testing import tiny_scenario

PROX = Contender("fedprox", "a pull", "mu", ("0.1", "1"))
FEW = (REFERENCE, PROX, Contender("fedavgm", "momentum", "beta", ("0.5",)))
ROUNDS = 8


@pytest.fixture
def short(monkeypatch):
    """Shortlists of three methods, so that a test takes a second."""
    for name, entries in (("single", FEW), ("per-site", (*FEW[:2], ALONE)), ("unseen", FEW)):
        old = QUESTIONS[name]
        new = Shortlist(name, old.asks, old.protocol, entries, old.left_out)
        monkeypatch.setitem(QUESTIONS, name, new)


@pytest.fixture
def plant(monkeypatch, short):
    """Numbers in place of training; returns the list of the rounds that are played."""

    def by(numbers) -> list:
        rounds: list = []
        made = planted(numbers, [], rounds)
        monkeypatch.setattr("fedshift.experiment.compare.execute", made)
        return rounds

    return by


def ask(out, question="single", **options):
    scenario = tiny_scenario(rounds=ROUNDS, **options.pop("changes", {}))
    options = {"workers": 1, "quiet": True} | options
    return fedshift.advise(scenario, question=question, out=out, **options)


def better(name: str, by: float):
    """``name`` is ahead from the first round on; seeds differ for all alike."""

    def numbers(config, round_):
        value = 50.0 + round_ + 3 * config.seed + (by if config.method == name else 0.0)
        return value, value - 7

    return numbers


def test_the_better_setting_is_taken_with_its_lead_and_its_test_number(plant, tmp_path):
    rounds = plant(better("fedprox[mu=1]", 9.0))
    found = ask(tmp_path)
    assert (found.method, found.verdict) == ("fedprox[mu=1]", "ahead")
    own, fedavg = found.lines[:2]
    assert (own.remark, own.final, fedavg.name, fedavg.remark) == (
        "take it",
        True,
        "fedavg",
        "behind",
    )
    assert own.lead.values == (9.0, 9.0, 9.0)  # seeds 1, 2, 3
    assert own.score.mean == 50 + 8 + 3 * 2 + 9
    assert found.test.mean == own.score.mean - 7
    assert found.sentences[0].startswith("Take fedprox[mu=1]: 73.0 against FedAvg's 64.0, +9.0")
    # 3 methods and 3 settings 1 round each; 4 and FedAvg 1 more; 2 and FedAvg 2 more; 2 x 3 x 8
    assert len(rounds) == 6 * 1 + 5 * 1 + 3 * 2 + 48 == found.rounds
    assert found.rounds == found.schedule.searched(3, 3, 1) + found.schedule.confirmed(2)
    # the others are like FedAvg, and are held against it as it was when they were given up
    assert {line.lead.mean for line in found.lines if not line.final} == {0.0}


def test_no_round_is_played_twice_and_a_second_time_nothing_is(plant, tmp_path):
    rounds = plant(better("fedprox[mu=1]", 9.0))
    first = ask(tmp_path)
    assert max(Counter(rounds).values()) == 1
    count = len(rounds)
    again = ask(tmp_path)
    assert len(rounds) == count
    assert again.to_json() == first.to_json()


def test_an_interrupted_advice_goes_on_where_it_was(plant, tmp_path):
    numbers = better("fedprox[mu=1]", 9.0)
    whole = len(plant(numbers)) or ask(tmp_path / "whole").rounds
    left = [11]

    def dying(config, round_):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return numbers(config, round_)

    first = plant(dying)
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path / "cut")
    rest = plant(numbers)
    assert ask(tmp_path / "cut").method == "fedprox[mu=1]"
    assert len(first) + len(rest) == whole
    assert not set(first) & set(rest)


def test_if_all_are_equal_fedavg_is_taken_and_said_to_be(plant, tmp_path):
    plant(better("", 0.0))
    found = ask(tmp_path)
    assert (found.method, found.verdict) == ("fedavg", "level")
    assert found.sentences[0].startswith("Take FedAvg: nothing measured better.")


def test_a_lead_within_the_error_is_no_lead(plant, tmp_path):
    def numbers(config, round_):
        lucky = config.method == "fedprox[mu=1]" and config.seed in (0, 2)
        return 50.0 + round_ + (9.0 if lucky else 0.0), 40.0

    plant(numbers)
    found = ask(tmp_path)
    assert found.method == "fedavg"
    # 0, 9, 0 over seeds 1 to 3: 3 +- 4.303 * 5.196 / sqrt(3)
    assert "+3.0 ± 12.9" in found.sentences[0]
    assert "within the error" in found.sentences[0]


def test_test_data_choose_nothing(plant, tmp_path):
    def numbers(config, round_):
        good = {"fedprox[mu=1]": 9.0}.get(config.method, 0.0)
        return 50.0 + round_ + good, 50.0 - 4 * good

    plant(numbers)
    assert ask(tmp_path).method == "fedprox[mu=1]"


def test_the_domain_asked_about_is_in_no_run_but_that_of_the_chosen_one(plant, tmp_path):
    def numbers(config, round_):
        asked = config.scenario.unseen == "tinted"
        likes = "fedavgm" if asked else "fedprox[mu=1]"
        return 60.0, 50.0 + round_ + (9.0 if config.method == likes else 0.0)

    rounds = plant(numbers)
    found = ask(tmp_path, "unseen")
    assert found.method == "fedprox[mu=1]"
    configs = [json.loads(f.read_text())["run"] for f in tmp_path.glob("*/config.json")]
    tinted = [c["method"] for c in configs if c["scenario"]["unseen"] == "tinted"]
    assert tinted == ["fedprox[mu=1]"]
    assert {c["scenario"]["unseen"] for c in configs} == {"dark", "bright", "tinted"}
    assert all(c["scenario"]["unseen"] not in c["scenario"]["domains"] for c in configs)
    schedule = found.schedule
    assert len(rounds) == schedule.searched(3, 3, 1) + schedule.confirmed(2) + ROUNDS
    assert found.rounds == len(rounds)


def test_local_training_is_taken_if_no_federation_is_better(plant, tmp_path):
    plant(better("local", 9.0))
    found = ask(tmp_path, "per-site")
    assert found.method == "local"
    assert found.sentences[0].startswith("Take local: no federation measured better")
    assert found.leaves == ("nothing",)


def cells(**values):
    return {name: Cell.of(given) for name, given in values.items()}


@pytest.mark.parametrize(
    ("scores", "taken"),
    [
        ({"fedavg": (1, 2, 3), "x": (5, 6, 7)}, "x"),
        ({"fedavg": (1, 2, 3), "x": (0, 1, 2)}, "fedavg"),
        ({"fedavg": (1, 2, 3), "x": (5, 6, 7), "local": (5, 6, 7)}, "local"),
        ({"fedavg": (1, 2, 3), "x": (8, 9, 10), "local": (5, 6, 7)}, "x"),
        # local is above FedAvg by chance only: x is sure, and is taken
        ({"fedavg": (1, 2, 3), "x": (5, 6, 7), "local": (1, 9, 9)}, "x"),
    ],
)
def test_who_is_taken(scores, taken):
    made = cells(**scores)
    leads = {n: c.minus(made["fedavg"]) for n, c in made.items() if n != "fedavg"}
    local = "local" if "local" in made else ""
    assert chosen(leads, "fedavg", local, made, barred=False)[0] == taken


def test_a_fedavg_that_sends_too_much_is_not_taken(plant, tmp_path, monkeypatch):
    plant(better("", 0.0))

    def warm(config, method):
        up = {"fedavg": 4000.0, "fedavg + quantise": 1000.0}.get(config.method, 8000.0)
        return Estimate("", "", "", ROUNDS, 1, 4, 1.0, 4 * up, 0.0, 0.0, 0.0)

    monkeypatch.setattr("fedshift.guide.advise_contest.estimate", warm)
    found = ask(tmp_path, max_bytes=2000.0)
    assert found.method.startswith("fedavg + quantise")
    assert "FedAvg itself sends too much" in found.sentences[0]
    out = dict(found.left_out)
    assert out["fedprox"] == "a site would send 8e+03 bytes, and may send 2e+03"
    assert "fedavg" in out
    assert (tmp_path / "plan.json").exists()
    with pytest.raises(ConfigError, match="sends as little"):
        ask(tmp_path / "none", max_bytes=10.0)


def test_what_a_clock_decided_is_kept(plant, tmp_path, monkeypatch):
    plant(better("", 0.0))
    seconds = [ROUNDS * 10.0]

    def warm(config, method):
        return Estimate("", "", "", ROUNDS, 1, 4, seconds[0], 0.0, 0.0, 0.0, 0.0)

    monkeypatch.setattr("fedshift.guide.advise_contest.estimate", warm)
    scenario = tiny_scenario(rounds=16)
    options = {"question": "single", "workers": 1, "quiet": True, "minutes": 6.0}
    found = fedshift.advise(scenario, out=tmp_path, **options)
    assert 8 <= found.schedule.rounds < 16
    assert f"{found.schedule.rounds} of 16 rounds were played" in found.notes[-1]
    seconds[0] = 1.0  # the machine is idle now
    again = fedshift.advise(scenario, out=tmp_path, **options)
    assert again.schedule == found.schedule


def test_the_run_file_is_one_that_run_accepts(plant, tmp_path):
    plant(better("fedprox[mu=1]", 9.0))
    ask(tmp_path)
    file = read_run_file(tmp_path / "advice.toml")
    assert method_of(file, "advice.toml") == "fedprox[mu=1]"
    assert scenario_of(file) == tiny_scenario(rounds=ROUNDS)
    page = (tmp_path / "advice.md").read_text()
    assert "Take fedprox" in page
    assert "| fedprox | mu 1 |" in page
    assert json.loads((tmp_path / "advice.json").read_text())["method"] == "fedprox[mu=1]"


def test_the_table_fits_eighty_columns():
    line = ["per-fedavg", "head_epochs 2", "84.2 ± 13.1", "+16.1 ± 13.0", "12.3 MB", "12.1"]
    table = FittedTable("t", HEADS, [[*line, "round 12"], [*line, "take it"]])
    assert table.groups(80) == [[1, 2, 3, 4, 5, 6]]
    shown = io.StringIO()
    Console(width=80, file=shown).print(table)
    assert "+16.1 ± 13.0" in shown.getvalue()
    assert max(map(len, shown.getvalue().splitlines())) <= 80


def test_methods_that_privacy_does_not_cover_are_left_out_with_the_reason():
    lane = Lane(tiny_scenario(protocols=("global",), private_at_new_site="refuse"), 0)
    fpl = next(e for e in QUESTIONS["single"].entries if e.method == "fpl")
    fit, out = admitted(candidates([REFERENCE, fpl], "secure-aggregation"), lane)
    assert [one.method for one in fit] == ["fedavg + secure-aggregation"]
    assert "class means of features" in dict(out)["fpl + secure-aggregation"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"question": "best"}, "no question is called 'best'"),
        ({"privacy": "yes"}, "no kind of privacy"),
        ({"seeds": 0}, "seeds is 0"),
        ({"minutes": -1.0}, "minutes is -1"),
        ({"max_bytes": math.nan}, "max_bytes is nan"),
        ({"changes": {"selection": "oracle"}}, "looks at test data"),
        ({"question": "unseen", "changes": {"unseen": None, "protocols": ("global",)}}, "names"),
        ({"question": "unseen", "changes": {"domains": ("dark",)}}, "has one; give it two"),
    ],
)
def test_bad_input_is_refused_before_anything_is_played(options, told, tmp_path):
    with pytest.raises(FedshiftError, match=told):
        ask(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_paused_run_goes_on_with_the_bits_of_an_uninterrupted_one(tmp_path):
    config, method = configure_run("fedavg", tiny_scenario())

    def play(folder, *pauses):
        for until in (*pauses, None):
            job = Job(config, method, tmp_path / folder, until)
            ((_, result),) = played([job], lambda _: Listener(), 1)
            if until is not None:
                assert [row["round"] for row in result.history] == list(range(1, until + 1))
                assert not job.done
        return result

    play("cut", 2, 1)  # what it was after round 1 can be asked later
    play("whole")
    weights = [(tmp_path / f / "weights.safetensors").read_bytes() for f in ("cut", "whole")]
    assert weights[0] == weights[1]
    cut, whole = (
        [row["scores"] for row in read_lines(tmp_path / folder / "metrics.jsonl")]
        for folder in ("cut", "whole")
    )
    assert cut == whole


class Eager(Part):
    """Undoes a learning rate that is too small to learn anything."""

    def edit_gradients(self, client, step):
        for parameter in client.net.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1e5)


def test_a_plug_in_that_is_better_by_construction_is_taken(monkeypatch, tmp_path):
    register("eager", group="test")(lambda: Method((Eager(),)))
    entries = (REFERENCE, Contender("eager", "it learns"))
    monkeypatch.setitem(QUESTIONS, "single", Shortlist("single", "?", "global", entries))
    try:
        scenario = tiny_scenario(rounds=4, lr=5e-7)
        found = fedshift.advise(
            scenario, question="single", out=tmp_path, workers=1, quiet=True, seeds=3
        )
    finally:
        METHODS.forget("eager")
    assert (found.method, found.verdict) == ("eager", "ahead")
    sent = [line.sent for line in found.lines[:2]]
    assert sent[0] == pytest.approx(sent[1], rel=1e-3)  # as many bytes as FedAvg
