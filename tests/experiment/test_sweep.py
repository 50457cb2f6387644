"""Sweeps: settings are chosen on validation data, and their runs are those of compare."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
from planted import planted
from scipy import stats

import fedshift
from fedshift.base.errors import ConfigError, FedshiftError, RunError, UnknownNameError
from fedshift.base.registry import Entry
from fedshift.cli import main
from fedshift.cli.runs import configured, read_file
from fedshift.core.registry import SCENARIOS, build
from fedshift.experiment.compare import compare
from fedshift.experiment.points import Axis, axis_of, drawn, grid, point, read_axis, with_settings
from fedshift.experiment.sweep import sweep
from fedshift.report import sweeps
from fedshift.testing import tiny_scenario

OPTUNA = pytest.mark.skipif(
    not fedshift.base.extras.is_installed("optuna"), reason="needs the extra sweep"
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    made = tiny_scenario(rounds=3)
    monkeypatch.setitem(SCENARIOS._entries, "tiny", Entry("tiny", lambda: made, ""))


def mu_of(config) -> float:
    return config.composition["parts"][0]["mu"]


def numbers(config, round_: int) -> tuple[float, float]:
    """Validation is best at mu = 0.1, test at mu = 0.01; seeds and rounds add a little."""
    mu = mu_of(config)
    val = 80 - 10 * abs(math.log10(mu) + 1) + round_ + config.seed
    return val, 60 - 10 * abs(math.log10(mu) + 2) + 2 * round_ + 3 * config.seed


@pytest.fixture
def played(monkeypatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr("fedshift.experiment.compare.execute", planted(numbers, names))
    return names


def swept(out: Path | None = None, **more):
    more = {"over": {"mu": [0.01, 0.1, 1.0]}, "seeds": [0, 1, 2]} | more
    return sweep("fedprox", "tiny", out=out, workers=1, quiet=True, **more)


# points


def test_an_axis_is_a_list_or_a_range():
    assert read_axis("mu=0.1, 1,0.1") == Axis("mu", ("0.1", "1"))
    assert read_axis("scenario.lr=0.1").values == ("0.1",)
    found = read_axis("mu=0.001:1:log")
    assert (found.low, found.high, found.log, found.whole) == (0.001, 1.0, True, False)
    assert read_axis("tau=1:8").whole
    assert axis_of("mu", [0.1, True, None, 2]).values == ("0.1", "true", "none", "2")
    for text in ("mu", "=1", "mu=", "mu=2:1", "mu=0:1:log", "mu=a:b", "mu=,"):
        with pytest.raises(ConfigError):
            read_axis(text)


def test_a_grid_has_every_combination_and_no_ranges():
    axes = [Axis("a", ("1", "2")), Axis("b", ("x", "y", "z"))]
    points = list(grid(axes))
    assert len(points) == 6
    assert points[1] == {"a": "1", "b": "y"}
    with pytest.raises(ConfigError, match="is a range"):
        list(grid([read_axis("mu=0:1")]))
    with pytest.raises(ConfigError, match="1000000 points"):
        list(grid([Axis(key, tuple(map(str, range(100)))) for key in "abc"]))


def test_random_points_are_uniform_log_uniform_and_whole():
    log, flat, whole = read_axis("a=0.001:1000:log"), read_axis("b=2:4.0"), read_axis("c=1:4")
    found = list(drawn([log, flat, whole], 600, seed=0))
    a = np.log10([float(p["a"]) for p in found])
    b = np.array([float(p["b"]) for p in found])
    c = [int(p["c"]) for p in found]
    assert stats.kstest(a, stats.uniform(-3, 6).cdf).pvalue > 0.01
    assert stats.kstest(b, stats.uniform(2, 2).cdf).pvalue > 0.01
    assert set(c) == {1, 2, 3, 4}
    assert stats.chisquare(np.bincount(c)[1:]).pvalue > 0.01


def test_a_longer_random_search_begins_with_a_shorter_one_and_repeats_no_point():
    axes = [Axis("a", ("1", "2", "3")), Axis("b", ("x", "y"))]
    short, whole = list(drawn(axes, 3, seed=1)), list(drawn(axes, 50, seed=1))
    assert whole[:3] == short
    assert len({tuple(p.items()) for p in whole}) == len(whole) == 6
    assert list(drawn(axes, 3, seed=2)) != short


def test_settings_go_into_the_brackets_of_the_term_that_has_them():
    assert with_settings("fedprox", {"mu": "0.1"}) == "fedprox[mu=0.1]"
    assert with_settings("fedavg + mixup", {"alpha": "0.4"}) == "fedavg + mixup[alpha=0.4]"
    made = with_settings("fedprox[lr=0.5] + mixup", {"alpha": "0.4", "mu": "2"})
    assert made == "fedprox[lr=0.5, mu=2] + mixup[alpha=0.4]"
    assert build(made).describe() == build("fedprox[mu=2, lr=0.5] + mixup[alpha=0.4]").describe()
    with pytest.raises(ConfigError, match="leave it out there"):
        with_settings("fedprox[mu=1]", {"mu": "0.1"})
    with pytest.raises(UnknownNameError, match="nu"):
        with_settings("fedprox + mixup", {"nu": "0.1"})
    with pytest.raises(ConfigError, match=r"scenario\.lr"):
        point("fedprox", tiny_scenario(), {"lr": "0.1"})


# the choice


def test_the_setting_is_chosen_on_validation_data_though_another_is_better_on_test_data(played):
    found = swept()
    assert found.best.label == "mu=0.1"
    # By hand: the last round has the best validation score; 83 + seed, and 56 - 10 + 6 + 3 seed.
    assert found.best.validation("personal").values == (83.0, 84.0, 85.0)
    assert found.test.values == (56.0, 59.0, 62.0)
    worse = found.trials[0]
    assert worse.runs[0].accuracy("personal") > found.best.runs[0].accuracy("personal")


def test_intervals_over_seeds_are_students(played):
    cell = swept().best.validation("personal")
    half = stats.t.ppf(0.975, 2) * np.std(cell.values, ddof=1) / np.sqrt(3)
    assert cell.interval == pytest.approx(half)


def test_only_the_chosen_setting_shows_a_test_number_in_every_format(played):
    found = swept()
    column = found.headings.index("test")
    assert [line[column] != "\N{EN DASH}" for line in found.lines] == [False, True, False]
    hidden = f"{found.trials[0].runs[0].accuracy('personal')}"  # 66.0, of no other cell
    assert hidden == "66.0"
    texts = [sweeps.markdown(found), sweeps.latex(found), sweeps.csv(found), found._repr_html_()]
    texts += [json.dumps(found.to_json()), repr(found)]
    assert not [text for text in texts if hidden in text]
    assert all("59.0" in text for text in texts[:-1])  # the chosen one's mean
    assert "chosen by the highest mean on validation data among 3 (grid)" in texts[0]
    rows = sweeps.csv(found).splitlines()
    assert len(rows) == 1 + 9
    assert [row.split(",")[4] != "" for row in rows[1:]] == [False] * 3 + [True] * 3 + [False] * 3


def test_last5_is_chosen_by_the_mean_of_the_last_five_validation_scores(played):
    found = swept(rounds=7, selection="last5", seeds=[0])
    assert found.best.validation("personal").mean == 80 + 5  # rounds 3 to 7
    assert swept(rounds=7, selection="last", seeds=[0]).best.validation("personal").mean == 87


def test_a_choice_on_test_data_is_refused(played):
    with pytest.raises(ConfigError, match="looks at test data"):
        swept(selection="oracle")


def test_a_setting_that_diverges_is_not_chosen(monkeypatch):
    def diverging(config, round_):
        if mu_of(config) == 0.1 and config.seed == 1:
            raise fedshift.DivergedError("a loss is not finite")
        return numbers(config, round_)

    monkeypatch.setattr("fedshift.experiment.compare.execute", planted(diverging, []))
    found = swept()
    assert found.best.label == "mu=0.01"
    assert found.lines[1][-1] == "1 of its runs diverged"
    monkeypatch.setattr(
        "fedshift.experiment.compare.execute", planted(lambda *_: (math.nan, 50.0), [])
    )
    with pytest.raises(RunError, match="has validation samples"):
        swept()


# the store


def test_a_sweep_plays_only_what_is_new_and_shares_its_runs_with_compare(played, tmp_path):
    swept(tmp_path, over={"mu": [0.01, 0.1]}, seeds=[0])
    assert len(played) == 2
    swept(tmp_path, over={"mu": [0.01, 0.1, 1.0]}, seeds=[0])
    assert len(played) == 3
    compare(["fedprox[mu=0.1]", "fedprox[mu=1]"], "tiny", out=tmp_path, workers=1, quiet=True)
    assert len(played) == 3
    default = build("fedprox").parts[0].mu
    assert default == 0.01
    found = compare("fedprox", "tiny", out=tmp_path, workers=1, quiet=True)
    assert len(played) == 3  # the same run under another name
    assert found.results[0].label == "fedprox"


def test_axes_of_the_scenario_change_the_scenario(played, tmp_path):
    found = swept(tmp_path, over={"scenario.lr": [0.1, 0.3], "mu": ["0.1"]}, seeds=[0])
    assert [t.runs[0].config.scenario.lr for t in found.trials] == [0.1, 0.3]
    assert found.keys == ["scenario.lr", "mu"]


def test_a_method_object_can_be_swept(played):
    found = sweep(build("fedprox"), "tiny", over={"mu": [1, 0.1]}, workers=1, quiet=True)
    assert found.best.label == "mu=0.1"
    assert [run.config.composition["parts"][0]["mu"] for run in found.best.runs] == [0.1]


def test_a_random_search_draws_from_ranges(played):
    found = swept(over={"mu": "0.001:1:log"}, random=5, seeds=[0])
    assert len(found.trials) == 5
    assert "among 5 (drawn at random, seed 0)" in found.note


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"over": {}}, "at least one axis"),
        ({"random": 2, "optuna": 2}, "choose one"),
        ({"random": 0}, "ask for one or more"),
        ({"seeds": 3}, "it takes a list"),
        ({"protocol": "unheard"}, "unheard"),
        ({"executor": "cloud"}, "no executor is called 'cloud'"),
        ({"executor": "slurm"}, "a folder that all machines see"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_played(played, given, told):
    with pytest.raises(FedshiftError, match=told):
        swept(**given)
    assert not played


# the guided search


@OPTUNA
def test_a_guided_search_gives_up_what_falls_behind_and_repeats_itself(played, tmp_path):
    found = swept(tmp_path, over={"mu": "0.0001:100:log"}, optuna=8, seeds=[0])
    given_up = [t for t in found.trials if t.pruned is not None]
    assert given_up
    assert found.best.complete
    best = max((t for t in found.trials if t.complete), key=lambda t: t.validation("personal").mean)
    assert found.best is best
    count = len(played)
    again = swept(tmp_path, over={"mu": "0.0001:100:log"}, optuna=8, seeds=[0])
    assert [(t.values, t.pruned) for t in again.trials] == [
        (t.values, t.pruned) for t in found.trials
    ]
    assert len(played) == count
    longer = swept(tmp_path, over={"mu": "0.0001:100:log"}, optuna=9, seeds=[0])
    assert [t.values for t in longer.trials][:8] == [t.values for t in found.trials]


def test_without_optuna_one_line_says_how_to_get_it(played, monkeypatch):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda name: False)
    with pytest.raises(ConfigError, match=r'needs Optuna.*pip install "fedshift\[sweep\]"'):
        swept(optuna=2)


# the command


def command(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    told = capsys.readouterr()
    assert not stop.value.code, told.err
    return told.out


def test_the_command_prints_the_table_and_keeps_all_formats(played, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "fedprox", "--scenario", "tiny", "--over", "mu=0.01,0.1", "--over"]
    words += ["scenario.lr=0.1,0.3", "--seeds", "2", "--workers", "1", "--protocol", "global"]
    told = command(capsys, *words)
    assert "chosen" in told
    assert "protocol global" in told
    found = {file.suffix: file for file in (tmp_path / "runs/sweeps").iterdir()}
    assert set(found) == {".json", ".md", ".tex", ".csv", ".png"}
    kept = json.loads(found[".json"].read_text())
    assert kept["chosen"] == {"mu": "0.1", "scenario.lr": "0.1"}
    assert found[".png"].read_bytes().startswith(b"\x89PNG")
    again = json.loads(command(capsys, *words, "--json"))
    assert again == kept
    assert len(played) == 8
    with pytest.raises(SystemExit):
        main([*words, "--over", "mu=1"])
    assert "is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "fedprox", "--over", "mu=0.01,0.1", "--random", "2", "--search-seed", "1"],
        ["compare", "--method", "fedprox[mu=0.3],fedavg + mixup[alpha=0.4]"],
    ],
)
def test_every_printed_command_gives_exactly_the_planned_run(
    words, played, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    more = ["--scenario", "tiny", "--seeds", "2", "--set", "scenario.clip=2", "--rounds", "2"]
    lines = command(capsys, *words, *more, "--print-jobs").splitlines()
    assert len(lines) == 4
    assert not played
    for line in lines:
        typed = shlex.split(line)
        assert typed[:2] == ["fedshift", "run"]
        assert "--requeue" in typed
        out = Path(typed[typed.index("--out") + 1])
        nothing = dict.fromkeys(("method", "scenario", "scale", "seed", "settings"))
        config, _ = configured(read_file(Path(typed[2])), allow=(), without=(), **nothing)
        assert config.name == out.name
        assert (config.scenario.clip, config.scenario.rounds) == (2.0, 2)


def test_a_printed_command_plays_the_run_and_a_scheduler_may_start_it_again(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "--method", "fedavg", "--scenario", "tiny", "--rounds", "1"]
    (line,) = command(capsys, *words, "--print-jobs").splitlines()
    for _ in range(2):
        (told,) = command(capsys, *shlex.split(line)[1:]).splitlines()
        assert (Path(told) / "summary.json").exists()
    assert command(capsys, *words, "--print-jobs") == ""  # nothing is left
