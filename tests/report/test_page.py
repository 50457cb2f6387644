"""What the page says beside its tables: answers, charts' data, run files, pictures, mixtures."""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from importlib import resources

import numpy as np
import pytest
from made_runs import made, made_run
from scipy import stats

import fedshift
from fedshift.base.errors import ConfigError, RunError
from fedshift.report import answers, chart_data, formats, grids, html, looks, tables
from fedshift.report.cells import Cell
from fedshift.report.departed import UNDECLARED, departed
from fedshift.report.load import load_all
from fedshift.report.mixed import mixed
from fedshift.report.page_parts import data_block, part
from fedshift.report.pictures import PagePicture, drawn, picture_of, pictures_in
from fedshift.report.rerun import reruns
from fedshift.report.results import Comparison, RunResult
from fedshift.runs.record import read_lines
from fedshift.testing import tiny_scenario


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs of one round on disk."""
    out = tmp_path_factory.mktemp("runs")
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("fedproto", 0)):
        place = out / f"{method}-{seed}"
        fedshift.run(method, tiny_scenario(rounds=1), seed=seed, out=place, quiet=True)
    return out


# statistics, against SciPy


def test_the_paired_p_value_is_scipys():
    a, b = np.random.default_rng(0).normal(70, 2, (2, 6))
    assert answers.paired_p(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert math.isnan(answers.paired_p([1.0]))
    assert answers.paired_p([2.0, 2.0]) == 0.0


def test_a_lead_is_beyond_its_interval_exactly_if_a_paired_t_test_says_so_at_five_per_cent():
    generator = np.random.default_rng(1)
    told = set()
    for _ in range(40):
        a = generator.normal(1.2, 1.5, 4)
        b = generator.normal(0.0, 1.5, 4)
        lead = Cell.of(a).minus(Cell.of(b))
        low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
        assert lead.interval == pytest.approx((high - low) / 2)
        assert answers.beyond(lead) == (stats.ttest_rel(a, b).pvalue < 0.05)
        told.add(answers.beyond(lead))
    assert told == {True, False}
    assert answers.beyond(Cell.of([1.0])) is None


def test_a_cell_is_the_mean_with_scipys_deviation_standard_error_and_interval():
    values = np.random.default_rng(2).normal(60, 3, 5)
    cell = Cell.of(values)
    assert cell.mean == pytest.approx(np.mean(values))
    assert cell.std == pytest.approx(np.std(values, ddof=1))
    error = stats.sem(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=error)
    assert cell.interval == pytest.approx((high - low) / 2)


def test_std_over_domains_has_one_degree_of_freedom_less(folder):
    found = fedshift.load(folder / "fedavg-0").outcome("global").metrics
    assert found.std == pytest.approx(np.std([*found.domains.values()], ddof=1))


# the answer


def answer_of(comparison):
    (found,) = answers.answers(comparison, tables.summaries(comparison)[0])
    return found


def test_the_answer_names_the_winner_its_lead_and_the_error():
    """fedavg 75, 77.5; fedprox 65, 68: 10 and 9.5, mean 9.75, s = 0.35, half 12.7 * s / sqrt 2."""
    found = answer_of(made())
    assert (found.verdict, found.best, found.second) == ("ahead", "fedavg", "fedprox")
    half = stats.t.ppf(0.975, 1) * statistics.stdev([10, 9.5]) / math.sqrt(2)
    assert found.lead.interval == pytest.approx(half)
    assert found.headline == "fedavg wins: 76.2 ± 15.9"
    p = stats.ttest_rel([75, 77.5], [65, 68]).pvalue
    assert f"+9.8 ± {half:.1f} points over fedprox, beyond the error" in found.reason
    assert f"paired over 2 seeds, 95 % interval, p = {p:.2g}" in found.reason
    assert "2 methods compared" in found.reason


def test_a_lead_within_the_error_is_no_win_and_says_who_is_level():
    def of(label, *values):
        tests = [[(v, v)] * 3 for v in values]
        return [made_run("fedavg", s, test, label=label) for s, test in enumerate(tests)]

    runs = of("a", 70, 74, 72) + of("b", 71, 71, 72) + of("c", 40, 41, 42)
    found = answer_of(Comparison(runs))
    assert (found.verdict, found.best, found.level) == ("level", "a", ("b",))
    assert found.headline.startswith("No clear winner: a leads with 72.0")
    assert "within the error" in found.reason
    assert "Not told from a: b." in found.reason


def test_one_seed_without_predictions_or_counts_is_not_decided():
    runs = [made_run("fedavg", 0), made_run("fedprox", 0)]
    found = answer_of(Comparison(runs))
    assert found.verdict == "unknown"
    assert "cannot be said" in found.reason
    assert answer_of(Comparison(runs[:1])).verdict == "alone"


def test_the_page_and_markdown_begin_with_the_answer():
    page = html.page(made(), html.Path())
    assert page.index("fedavg wins: 76.2") < page.index("<table")
    text = formats.markdown(made())
    assert text.index("**fedavg wins: 76.2 ± 15.9.**") < text.index("| method")
    oracle = answer_of(made(selection="oracle"))
    assert oracle.reason.startswith("Rounds were chosen on test data (ORACLE)")


# charts


def test_forty_methods_differ_in_colour_or_dash_and_seventy_in_colour_or_mark():
    found = [looks.look(i) for i in range(70)]
    assert len({(one.colour, one.dash) for one in found[:40]}) == 40
    assert len({(one.colour, one.marker) for one in found}) == 70
    assert len(set(looks.COLOURS)) == 10


def test_the_page_draws_methods_as_the_figures_do():
    script, style = part("charts.js"), part("page.css")
    marks = re.search(r"MARKS = \[(.*?)\]", script)[1]
    assert re.findall(r'"(\w+)"', marks) == list(looks.MARKS)
    light = style.partition("@media")[0]
    assert tuple(re.findall(r"--c\d: (#\w+)", light)) == looks.COLOURS
    assert len(set(re.findall(r"--c\d: (#\w+)", style))) == 20  # and others on dark pages
    dashes = re.search(r"DASHES = \[(.*?)\];", script)[1]
    assert dashes.count(",") + 1 == len(looks.DASHES)


def test_curves_are_means_and_deviations_over_seeds():
    found = chart_data.curve(made().of("fedavg", "tiny"), "personal")
    assert found["x"] == [1, 2, 3]
    assert found["y"] == pytest.approx([55.5, 76.25, 75.0])
    spread = [statistics.stdev(p) for p in ((55, 56), (75, 77.5), (85, 65))]
    assert found["s"] == pytest.approx(spread, abs=1e-3)
    assert found["chosen"] == [(2, 75.0), (2, 77.5)]
    assert chart_data.curve([made_run()], "personal")["s"] is None


def test_dots_have_the_intervals_of_the_table():
    row = tables.rows(made(), "tiny", "personal")[0]
    found = chart_data.dots(row)
    assert found["values"] == [70.5, 82.0]
    assert found["half"] == pytest.approx(row.avg.interval, abs=1e-3)
    assert found["n"] == 2


def test_confusion_counts_are_those_of_the_runs_added_up(folder):
    found = load_all([folder])
    summary = tables.summaries(found)[0]
    (data,) = [p for p in chart_data.section_data(found, summary, "a")["protocols"]
               if p["name"] == "global"]  # fmt: skip
    own = next(c for c in data["confusion"] if (c["m"], c["d"]) == (0, 0))["c"]
    domain = data["domains"][0]
    each = [r.outcome("global").metrics.confusion[domain] for r in found.of("fedavg", "tiny")]
    assert sum(own[2::3]) == sum(n for cells in each for _, _, n in cells) == 2 * 16


def test_a_data_block_cannot_end_its_element():
    text = str(data_block({"a": "</script><!--&\u2028"}))
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028"}


def test_libraries_are_those_that_their_licences_name():
    told = resources.files("fedshift.report").joinpath("page", "LICENSES.txt").read_text("utf-8")
    assert part("d3.min.js").startswith("// https://d3js.org v7.9.2 Copyright")
    assert part("plot.umd.min.js").startswith("// @observablehq/plot v0.6.17 Copyright")
    assert "d3 7.9.2" in told
    assert "Plot 0.6.17" in told
    assert not [n for n in ("d3.min.js", "plot.umd.min.js") if "</script" in part(n)]


# tables of the page


def test_cells_sort_by_their_numbers():
    grid = grids.overview(made(), tables.summaries(made())[0])
    assert [line[1].value for line in grid.lines] == [76.25, 66.5]
    assert [line[2].value for line in grid.lines] == [2000.0, 2000.0]
    assert grid.heads[-1] == "n (seeds)"
    assert [line[-1].mean for line in grid.lines] == ["2", "2"]
    assert 'data-v="76.25"' in html.page(made(), html.Path())


def test_cost_has_time_relative_to_fedavg():
    slow = made_run("fedprox", 0)
    rows = [row | {"seconds": 3.0} for row in slow.history]
    quick = made_run("fedavg", 0)
    own = [row | {"seconds": 1.5} for row in quick.history]
    both = Comparison(
        [
            RunResult(quick.config, own, quick.summary, None),
            RunResult(slow.config, rows, slow.summary, None),
        ]
    )
    grid = grids.costs(both, tables.summaries(both)[0])
    assert grid.heads[-1] == "time, FedAvg = 1"
    assert [line[-1].mean for line in grid.lines] == ["1.00", "2.00"]


def test_the_ledger_is_added_up_and_what_nobody_declares_is_marked(folder, monkeypatch):
    found = load_all([folder])
    grid = departed(found, tables.summaries(found)[0])
    rows = read_lines(folder / "fedavg-0" / "ledger.jsonl")
    up = [r for r in rows if r["direction"] == "up" and r["task"] == "train"]
    total = sum(r["kinds"]["shared"] for r in up)
    line = next(x for x in grid.lines if x[:2] == ["fedavg", "train: shared"])
    assert (line[3].value, line[4].value) == (len({r["client"] for r in up}), total)
    assert line[5].value == total / len(up)
    assert UNDECLARED not in html.page(found, folder)
    monkeypatch.setattr("fedshift.runs.what_left.shares_of", lambda _: {})
    assert UNDECLARED in html.page(found, folder)


# run again


def test_a_run_file_of_the_page_is_the_run(folder, tmp_path):
    from fedshift.cli.runs import configured, read_file

    found = load_all([folder])
    again = {one.method: one for one in reruns(found, "tiny")}
    text = html.page(found, folder)
    assert (
        '<pre class="copy-me">'
        "fedshift run 1-01-fedavg.toml --seed 0 --out again/1-01-fedavg-s0\n"
        "fedshift run 1-01-fedavg.toml --seed 1 --out again/1-01-fedavg-s1\n</pre>"
    ) in text
    file = tmp_path / f"{again['fedproto'].name}.toml"
    file.write_text(again["fedproto"].text)
    assert tomllib.loads(file.read_text())["method"] == "fedproto"
    names = ("method", "scenario", "scale", "seed", "settings")
    config, _ = configured(read_file(file), allow=(), without=(), **dict.fromkeys(names))
    assert config.fingerprint == fedshift.load(folder / "fedproto-0").config.fingerprint


# pictures


def test_a_picture_is_embedded_as_an_image_and_never_as_markup(tmp_path):
    (tmp_path / "t_sne.svg").write_text("<svg onload=alert(1)></svg>")
    picture = picture_of(tmp_path / "t_sne.svg")
    text = html.page(
        made(), html.Path(), pictures=[picture, PagePicture("<b>", b"x", text="n = 3")]
    )
    assert "<svg onload" not in text
    assert '<img src="data:image/svg+xml;base64,' in text
    assert 'alt="t sne"' in text
    assert "<h4>&lt;b&gt;</h4>" in text
    (tmp_path / "analyses").mkdir()
    (tmp_path / "analyses" / "cam.svg").write_text("<svg/>")
    assert [one.title for one in pictures_in([tmp_path, tmp_path / "none"])] == ["cam"]
    assert drawn("curves", made().plot(), "n = 2").image[:4] == b"\x89PNG"
    for name in ("none.png", "t_sne.txt"):
        (tmp_path / "t_sne.txt").write_text("x")
        with pytest.raises(ConfigError, match=r"\.png, \.svg"):
            picture_of(tmp_path / name)


# several folders, other formats, mixtures


def test_a_run_that_is_found_twice_counts_once(folder, tmp_path):
    found = load_all([folder, folder / "fedavg-0"])
    assert len(found.results) == 3
    assert "it counts once" in found.notes[0]
    assert "it counts once" in html.page(found, tmp_path)
    with pytest.raises(RunError, match="is not a folder"):
        load_all([folder / "nothing"])


def test_unfinished_runs_are_told(folder, tmp_path):
    for name in ("fedavg-0", "fedproto-0"):
        (tmp_path / name).mkdir()
        for file in ("config.json", "metrics.jsonl", "summary.json"):
            (tmp_path / name / file).write_bytes((folder / name / file).read_bytes())
    (tmp_path / "fedproto-0" / "summary.json").unlink()
    (note,) = load_all([tmp_path]).notes
    assert note.startswith("1 of 2 runs in")
    assert note.endswith("are not finished and in no table: fedproto-0.")


def test_json_has_every_number_of_the_table_and_nulls():
    found = json.loads(formats.json(made(), "fedavg"))
    (scenario,) = found["scenarios"]
    row = scenario["protocols"]["personal"]["selected"][0]
    assert row["avg"]["mean"] == 76.25
    assert row["avg"]["values"] == [75.0, 77.5]
    assert row["avg"]["interval"] == pytest.approx(15.88, abs=0.01)
    assert row["domains"]["dark"]["mean"] == 70.5
    assert scenario["answers"][0]["verdict"] == "ahead"
    (apart,) = scenario["differences"]
    assert apart["difference"]["mean"] == pytest.approx(-9.75)
    alone = json.loads(formats.json(Comparison([made_run()])))
    assert alone["scenarios"][0]["protocols"]["personal"]["last"][0]["avg"]["interval"] is None


def test_runs_of_other_settings_share_a_table_only_if_asked_and_rows_say_in_what_they_differ():
    both = Comparison([*made().results, *made(rounds=7).results, *made(scored="trained").results])
    assert len(both.scenarios) == 3
    assert both.methods == ["fedavg", "fedprox"]
    as_one = mixed(both)
    assert as_one.scenarios == ["tiny"]
    assert len(as_one.methods) == 6
    text = formats.markdown(as_one)
    assert r"fedavg (rounds=7, scored=aggregated)" in text
    assert "scored=trained" in text
    assert "NOT THE SAME FOR ALL RUNS" in text
    assert as_one.notes == [
        "MIXED: rows of one table differ in rounds, scored; what they have is beside each "
        "method's name."
    ]
    assert "MIXED" in html.page(as_one, html.Path())
    assert mixed(made()).methods == ["fedavg", "fedprox"]
