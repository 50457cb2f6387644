"""Numbers of the report against hand computation, and what it must never hide."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import math
import re
import statistics
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from made_runs import MADE, made, made_run
from rich.console import Console
from scipy import stats

import fedshift
from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.experiment.run import run
from fedshift.report import figures, formats, html, intervals, screen, tables
from fedshift.report.cells import Cell
from fedshift.report.fitted import FittedTable
from fedshift.report.results import Comparison, Failure, RunResult
from fedshift.testing import tiny_scenario

DASH = "\N{EN DASH}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two methods x two seeds on disk; FedBN keeps entries private, so it has no global model."""
    out = tmp_path_factory.mktemp("runs")
    return Comparison(
        [
            run(method, tiny_scenario(), seed=seed, out=out / f"{method}-{seed}")
            for method in ("fedavg", "fedbn")
            for seed in (0, 1)
        ],
        path=out,
    )


def printed(renderable, width=160):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(renderable)
    return console.file.getvalue()


def plain(renderable, width=160):
    return re.sub(r"\x1b\[[0-9;]*m", "", printed(renderable, width))


# rows


def test_a_row_is_the_mean_and_sample_deviation_over_seeds_at_the_selected_round():
    row = tables.rows(made(), "tiny", "personal")[0]
    assert row.method == "fedavg"
    assert row.seeds == row.avg.n == 2
    assert list(row.domains) == ["dark", "bright"]  # the scenario's order
    assert row.domains["dark"].mean == statistics.fmean([70, 71])
    assert row.domains["bright"].std == pytest.approx(statistics.stdev([80, 84]))
    assert row.avg.mean == statistics.fmean([75, 77.5])
    assert row.avg.std == pytest.approx(statistics.stdev([75, 77.5]))
    assert row.std.mean == pytest.approx(statistics.fmean([10 / 2**0.5, 13 / 2**0.5]))
    assert row.all.mean == pytest.approx(statistics.fmean([290 / 4, 297 / 4]))
    assert row.worst.mean == 70.5
    assert (row.up, row.down) == (2000, 1_000_000)
    assert row.rules == ("validation",)


def test_each_choice_of_round_has_its_own_numbers():
    def averages(choice):
        return [r.avg.mean for r in tables.rows(made(), "tiny", "personal", choice)]

    assert averages("last") == [statistics.fmean([85, 65]), statistics.fmean([94.5, 70])]
    assert averages("oracle") == [statistics.fmean([85, 77.5]), statistics.fmean([94.5, 70])]


def test_rounds_to_a_threshold_count_the_seeds_that_got_there():
    found = tables.rows(made(), "tiny", "personal", threshold=80.0)
    assert [(r.rounds_to.mean, r.rounds_to.n) for r in found] == [(3, 1), (3, 1)]
    assert tables.rows(made(), "tiny", "personal")[0].rounds_to is None


def test_a_method_without_a_model_has_empty_cells(trained):
    row = tables.rows(trained, "tiny", "global")[1]
    assert row.method == "fedbn"
    assert {str(c) for c in (row.avg, row.worst, *row.domains.values())} == {DASH}
    assert math.isnan(row.avg.mean)


def cell(*values: float, error: float = math.nan) -> Cell:
    return Cell.of(values, error)


def test_bold_is_a_lead_beyond_the_interval_of_the_difference():
    near, far, nothing = cell(70, 74, 72), cell(60, 64, 61), cell()
    # near - far is 10, 10, 11: mean 31/3, s = 1/sqrt(3), half-width 4.303 / 3 = 1.43
    assert tables.leaders([far, near, nothing], [False] * 3) == [False, True, False]
    lead = near.minus(far)
    assert lead.mean == pytest.approx(31 / 3)
    assert lead.interval == pytest.approx(4.302653 / 3, rel=1e-6)
    # a lead of one that is not the same in every seed: 3, -1, 1
    assert tables.leaders([near, cell(67, 75, 71)], [False] * 2) == [False, False]
    assert tables.leaders([near, near], [False] * 2) == [False, False]  # a tie has no winner
    assert tables.leaders([near, nothing], [False] * 2) == [False, False]  # it leads nobody


def test_one_seed_is_as_sure_as_its_test_samples():
    few, many = (cell(80.0, error=intervals.sample_error(80.0, n)) for n in (50, 5000))
    other = cell(75.0, error=0.3)
    assert tables.leaders([few, other], [False] * 2) == [False, False]
    assert tables.leaders([many, other], [False] * 2) == [True, False]
    assert tables.leaders([cell(80.0), cell(20.0)], [False] * 2) == [False, False]  # nobody knows


def test_intervals_are_those_of_the_books():
    values = [70.0, 71.5, 74.0, 69.0, 72.5]
    mean, error = statistics.fmean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, 4, mean, error)
    assert Cell.of(values).interval == pytest.approx((high - low) / 2)
    # the bootstrap over the samples of one test set, by NumPy
    rng = np.random.default_rng(0)
    right = np.arange(400) < 300  # 75 % of 400
    again = [100 * rng.choice(right, 400).mean() for _ in range(4000)]
    assert intervals.sample_error(75.0, 400) == pytest.approx(np.std(again), rel=0.05)
    domains, counts = {"a": 75.0, "b": 60.0}, {"a": 400, "b": 100}
    twice = [
        (100 * rng.choice(right, 400).mean() + 100 * rng.binomial(100, 0.6) / 100) / 2
        for _ in range(4000)
    ]
    assert intervals.mean_error(domains, counts) == pytest.approx(np.std(twice), rel=0.05)
    assert math.isnan(intervals.mean_error(domains, {"a": 400}))
    assert intervals.sample_error(100.0, 50) > 0


def test_differences_to_a_reference_are_taken_seed_by_seed():
    found = made()
    apart = found.difference("fedprox", "fedavg", "tiny", "personal")
    assert apart.values == (-10.0, -9.5)  # 65 - 75 and 68 - 77.5
    assert apart.interval == pytest.approx(12.7062 * 0.25, rel=1e-4)
    shown = " ".join(plain(screen.console(found, "fedavg")).split())
    assert "difference to fedavg" in shown
    assert "fedprox -9.8 ± 3.2" in shown
    assert "| fedprox | -9.8 ± 3.2 |" in formats.markdown(found, "fedavg")
    one = Comparison(found.results[1:])  # fedavg has seed 1 only
    assert one.difference("fedprox", "fedavg", "tiny", "personal").values == (-9.5,)
    with pytest.raises(FedshiftError, match="no method of these runs is called 'fedagv'"):
        screen.console(found, "fedagv")


def test_the_number_of_test_samples_is_with_every_table(trained):
    assert "test samples: dark 16, bright 16, tinted 16" in tables.summaries(trained)[0].note
    shown = [" ".join(x.split()) for x in plain(screen.detail(trained.results[0])).splitlines()]
    assert "test samples 16 16" in shown
    alone = Comparison(trained.results[:1])
    row = tables.rows(alone, "tiny", "personal")[0]
    expected = 1.959964 * intervals.mean_error(row_values(row), dict.fromkeys(row.domains, 16))
    assert row.avg.interval == pytest.approx(expected)
    assert "1 seed, ± 95 % interval over test samples" in tables.summaries(alone)[0].note


def row_values(row) -> dict[str, float]:
    return {name: found.mean for name, found in row.domains.items()}


def test_no_oracle_wins_over_an_honest_number():
    cells = [cell(90.0, 91.0, 90.5), cell(70.0, 71.0, 70.4), cell(60.0, 61.0, 60.5)]
    assert tables.leaders(cells, [True, False, False]) == [False, True, False]
    assert tables.leaders(cells, [True, True, True]) == [True, False, False]


def test_runs_of_unlike_scenarios_are_called_unlike():
    mixed = Comparison([made_run("fedavg", 0), made_run("fedprox", 0, lr=0.5, rounds=9)])
    found = tables.confounders(mixed.results)
    assert found["NOT THE SAME FOR ALL RUNS"] == "rounds, lr"
    assert " or " in found["optimiser"]
    assert mixed.scenarios == ["tiny (rounds=3, lr=0.05)", "tiny (rounds=9, lr=0.5)"]
    for scenario in mixed.scenarios:
        assert scenario in plain(screen.console(mixed))
    assert "NOT THE SAME FOR ALL RUNS" not in tables.confounders(made().results)


# the screen


def test_the_screen_shows_the_best_in_bold_and_what_the_numbers_rest_on():
    text = printed(screen.console(made()))
    assert re.search(r"\x1b\[1m76\.2 ± 15\.9", text)
    assert not re.search(r"\x1b\[1m66\.5", text)
    flat = " ".join(plain(screen.console(made())).split())
    assert "66.5 ± 19.1" in flat
    assert "2 kB 1 MB" in flat
    assert "± 95 % interval over 2 seeds; round chosen on validation data" in flat
    for name, value in tiny_scenario().confounders().items():
        assert f"{name}: {value}" in flat
    assert "ORACLE" not in flat


def test_an_oracle_is_called_one_next_to_its_number():
    oracle = made(selection="oracle")
    flat = " ".join(plain(screen.console(oracle)).split())
    assert "82.2 ± 155.7 ORACLE" in flat
    assert "personal (ORACLE: chosen on test data)" in flat
    assert "82.2 ± 155.7 ORACLE" in formats.markdown(oracle)
    assert "ORACLE: round chosen on test data" in formats.latex(oracle)
    assert "selected: ORACLE (chosen on test data)" in plain(screen.detail(oracle.results[0]))


def test_nothing_is_shown_as_a_dash(trained):
    line = next(x for x in plain(screen.console(trained)).splitlines() if "fedbn" in x)
    assert line.count(DASH) == 3  # global, unseen, unseen-adapted
    row = next(x for x in formats.markdown(trained).splitlines() if "| fedbn" in x)
    assert row.count(f"| {DASH} ") == 3
    assert formats.latex(trained).count("& -- ") == 3
    shown = plain(screen.detail(trained.results[-1]))
    assert f"global, unseen, unseen-adapted: {DASH} (the method has no such model)" in shown


def test_a_run_is_shown_at_its_three_rounds_with_traffic_and_what_it_shares():
    result = made_run(shares={"loss-probe": "training loss of the received model"})
    flat = [" ".join(line.split()) for line in plain(screen.detail(result)).splitlines()]
    assert "selected (validation) 2 70.0 80.0 75.0 7.1 72.5 70.0" in flat
    assert "last 3 80.0 90.0 85.0 7.1 82.5 80.0" in flat
    assert "oracle (chosen on test data) 3 80.0 90.0 85.0 7.1 82.5 80.0" in flat
    whole = " ".join(flat)
    assert "2 kB up and 1 MB down per round of training; 9 kB up and 4 MB down in all" in whole
    assert "shared beside weights: loss-probe: training loss of the received model" in whole
    assert "BN statistics: average" in whole


def test_a_label_is_text_and_not_markup():
    odd = Comparison([made_run(label="[red]x[/red]")])
    assert "[red]x[/red]" in plain(screen.console(odd))
    assert "[red]x[/red]" in plain(screen.detail(odd.results[0]))


def test_a_table_of_eighty_columns_cuts_no_word():
    heads = [
        "method",
        *(f"hospital-{i}" for i in range(12)),
        "personal (ORACLE: chosen on test data)",
    ]
    lines = [[name, *["76.2 ± 15.9"] * 13] for name in ("fedprox[mu=0.1] + mixup[alpha=0.4]", "a")]
    for width in (80, 60, 200):
        text = plain(FittedTable("heart", heads, lines), width)
        assert max(map(len, text.splitlines())) <= width
        words = text.split()
        assert [w for h in heads for w in h.split() if w not in words] == []
        assert {"fedprox[mu=0.1]", "mixup[alpha=0.4]"} <= set(words)
        assert text.count("76.2 ± 15.9") == 26
    assert len(FittedTable("heart", heads, lines).groups(200)) == 1
    assert "heart (continued)" in plain(FittedTable("heart", heads, lines), 80)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (31016, "31 kB"),
        (1.5e9, "1.5 GB"),
        (2e13, "20 TB"),
    ],
)
def test_sizes_are_for_people(count, text):
    assert tables.size(count) == text


# Markdown, LaTeX, CSV


def test_markdown_has_the_best_in_bold_and_escapes_labels():
    text = formats.markdown(made())
    assert "| fedavg | **76.2 ± 15.9** | 2 kB | 1 MB |" in text
    assert "| fedprox | 66.5 ± 19.1 | 2 kB | 1 MB |" in text
    assert r"| a\|b\_c | " in formats.markdown(Comparison([made_run(label="a|b_c")]))


def test_latex_is_one_booktabs_table_per_scenario_with_the_best_in_bold():
    text = formats.latex(Comparison([*made().results, *made(name="tiny_2").results]))
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    assert r"fedavg & \textbf{76.2 $\pm$ 15.9} & 2 kB & 1 MB \\" in text
    assert r"fedprox & 66.5 $\pm$ 19.1 &" in text
    caption = re.search(r"\\caption\{(.*)\}", text)[1]
    for word in ("tiny", "personal", "over 2 seeds", "round chosen on validation data"):
        assert word in caption
    assert r"\caption{tiny\_2." in text


def test_latex_escapes_what_latex_would_read():
    text = formats.latex(Comparison([made_run(label=r"a_b 5% {x} & $y \z #1 <k> ~ ^")]))
    row = next(line for line in text.splitlines() if "75.0" in line)
    assert r"a\_b 5\% \{x\} \& \$y \textbackslash{}z \#1 \textless{}k\textgreater{}" in row
    assert r"\textasciitilde{} \textasciicircum{}" in row


def test_csv_parses_back_to_every_number(trained):
    lines = list(csv.DictReader(io.StringIO(formats.csv(trained))))
    # fedavg: 2 x 2 + 2 x 1 domains and 4 numbers each under 4 protocols; fedbn: personal alone;
    # and 5 further measures of each domain and of all
    further = [5 * (domains + 1) for domains in (2, 2, 1, 1)]
    assert len(lines) == 2 * 3 * ((2 + 2 + 1 + 1 + 4 * 4) + sum(further) + (2 + 4) + 5 * 3)
    for result in trained.results:
        mine = [x for x in lines if x["run"] == result.config.name and x["choice"] == "last"]
        own = [x for x in mine if x["protocol"] == "personal"]
        expected = result.outcome("personal", "last").metrics
        found = {x["domain"]: float(x["value"]) for x in own if x["measure"] == "accuracy"}
        assert found == expected.domains
        assert float(next(x for x in own if x["measure"] == "avg")["value"]) == expected.avg
    assert {x["rule"] for x in lines if x["choice"] == "oracle"} == {"oracle"}


def test_csv_keeps_a_label_with_commas_and_quotes():
    label = 'fedavg, mu="1"'
    lines = list(csv.DictReader(io.StringIO(formats.csv(Comparison([made_run(label=label)])))))
    assert {x["method"] for x in lines} == {label}


def test_a_table_is_written_to_a_file(tmp_path):
    formats.write("±\n", tmp_path / "new" / "table.md")
    assert (tmp_path / "new" / "table.md").read_text("utf-8") == "±\n"


# figures


def test_curves_have_a_line_per_method_through_the_means_and_a_dot_per_seed():
    axes = figures.curves(made(), "tiny", "personal").axes[0]
    assert [line.get_label() for line in axes.lines] == list(MADE)
    means = [statistics.fmean(p) for p in zip((55, 75, 85), (56, 77.5, 65), strict=True)]
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3]
    assert list(axes.lines[0].get_ydata()) == means
    bands, dots = axes.collections[::2], axes.collections[1::2]
    band = {y for x, y in bands[0].get_paths()[0].vertices if x == 2}
    spread = statistics.stdev([75, 77.5])
    assert (min(band), max(band)) == pytest.approx((76.25 - spread, 76.25 + spread))
    assert dots[0].get_offsets().tolist() == [[2, 75], [2, 77.5]]
    assert {t.get_text() for t in axes.texts} >= set(MADE)


def test_one_seed_has_a_line_and_no_band():
    axes = figures.curves(Comparison([made_run()]), "tiny", "personal").axes[0]
    assert len(axes.lines) == len(axes.collections) == 1
    assert "band" not in " ".join(t.get_text() for t in axes.texts)


def test_a_method_without_a_model_has_no_line_and_is_named(trained):
    for draw in (figures.curves, figures.domains):
        axes = draw(trained, "tiny", "global").axes[0]
        assert len(axes.lines) == 1
        assert "no such model: fedbn" in axes.get_xlabel()
    assert len(figures.curves(trained, "tiny", "personal").axes[0].lines) == 2


def test_the_dot_plot_has_a_dot_per_domain_and_bars_of_one_deviation():
    figure = figures.domains(made(), "tiny", "personal")
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["dark", "bright", "AVG"]
    assert [c.get_label() for c in axes.containers] == list(MADE)
    dots, _, (bars,) = axes.containers[0]
    assert list(dots.get_xdata()) == [70.5, 82, 76.25]
    dark = bars.get_segments()[0][:, 0]
    assert dark == pytest.approx(
        [70.5 - statistics.stdev([70, 71]), 70.5 + statistics.stdev([70, 71])]
    )
    assert [t.get_text() for t in figure.legends[0].get_texts()] == list(MADE)


def test_figures_say_when_rounds_were_chosen_on_test_data():
    for draw in (figures.curves, figures.domains):
        texts = draw(made(selection="oracle"), "tiny", "personal").axes[0].texts
        assert any("ORACLE: round chosen on test data" in t.get_text() for t in texts)


def test_labels_that_would_overlap_move_apart_and_keep_their_order():
    found = figures.spread_out([10.0, 50.0, 10.5, 10.2], 2.0)
    middle = statistics.fmean([10.0, 10.5, 10.2])
    assert found == pytest.approx([middle - 2, 50.0, middle + 2, middle])
    assert figures.spread_out([], 1.0) == []


def test_long_labels_are_wrapped_and_leave_room_for_the_lines(tmp_path):
    label = "fedavg + mixup + proximal, alpha=0.2, mu=0.01, without something"
    long = Comparison([made_run(label=f"{label} {i}") for i in range(3)])
    for draw in (figures.curves, figures.domains):
        figure = draw(long, "tiny", "personal")
        figures.save(figure, tmp_path / "long.png")  # draws: a layout that fails warns
        width = figure.axes[0].get_position().width * figure.get_size_inches()[0]
        assert width > 3


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_figure_is_the_same_bytes_every_time(tmp_path, kind):
    paths = [tmp_path / f"{i}.{kind}" for i in range(2)]
    blobs = [
        figures.save(figures.domains(made(), "tiny", "personal"), p).read_bytes() for p in paths
    ]
    assert blobs[0] == blobs[1]
    assert b"Date" not in blobs[0]
    assert blobs[0][:5] == {"png": b"\x89PNG\r", "svg": b"<?xml", "pdf": b"%PDF-"}[kind]


def test_a_figure_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'\.gif'; a figure is one of \.png, \.svg, \.pdf"):
        figures.save(figures.domains(made(), "tiny", "personal"), tmp_path / "x.gif")


def test_figures_leave_the_settings_of_matplotlib_alone():
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 31}):
        figures.curves(made(), "tiny", "personal")
        assert mpl.rcParams["font.size"] == 31


def test_without_matplotlib_figures_tell_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "fedshift\[report\]"'):
        made().plot()


# the page


class Reader(HTMLParser):
    """Checks that tags are closed in order; collects ids and links."""

    VOID = ("meta", "br", "img", "link")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [v for k, v in attrs if k == "id"]
        self.links += [v for k, v in attrs if k in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data.split()


def test_the_page_is_whole_and_needs_nothing_else(trained, tmp_path):
    path = html.write(trained, tmp_path / "new" / "report.html")
    text = path.read_text("utf-8")
    page = Reader(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    markup = re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"https?://|//[a-z]|@import|<script|<link|<svg|\son\w+=", markup)
    assert len(re.findall(r"<script>", text)) == 4  # two libraries, our charts, the page's own
    kinds = ("curves", "dots", "confusion")
    assert all(markup.count(f'data-chart="{kind}-') == 4 for kind in kinds)  # per protocol


def test_the_page_has_numbers_confounders_versions_and_where_the_runs_are(trained):
    text = html.page(trained, trained.path)
    flat = " ".join(Reader(text).words)
    assert "fedbn-1" in flat  # relative to the page
    assert str(trained.path) not in text
    assert f"Made by fedshift {fedshift.__version__}" in flat
    said = tiny_scenario().confounders() | {"split": "given with the data"}
    for name, value in said.items():
        assert f"{name} {value}" in flat
    assert re.search(rf"fedbn [\d.]+ ± [\d.]+ {DASH} {DASH} {DASH}", flat)


def test_the_page_shows_selected_and_last_side_by_side_and_labels_the_oracle():
    flat = " ".join(Reader(html.page(made(), html.Path())).words)
    heads = "method dark bright AVG STD ALL worst"
    first = "fedavg 70.5 ± 6.4 82.0 ± 25.4 76.2 ± 15.9"
    assert f"selected (validation) {heads} {first}" in flat
    assert f"last {heads} fedavg 70.0 ± 127.1 80.0 ± 127.1 75.0 ± 127.1" in flat
    assert f"oracle (chosen on test data) {heads}" in flat
    text = html.page(made(), html.Path())
    assert '<span class="best">76.2</span>' in text
    assert '<span class="best">82.0</span>' not in text  # bright: a lead of 11, give or take 12.7
    assert '<span class="best">66.5</span>' not in text


def test_a_selected_oracle_is_marked_on_the_page():
    text = html.page(made(selection="oracle"), html.Path())
    assert '<small> ± 155.7</small> <b class="oracle">ORACLE</b>' in text
    assert '<caption class="oracle">selected: ORACLE (chosen on test data)</caption>' in text
    assert text.count('<th scope="row">fedprox ORACLE</th>') == 2  # selected and oracle, not last


def test_the_page_escapes_what_others_wrote():
    odd = made_run(label="<b onclick='x'>&", summary="<i>scenario</i>", shares={"p": "<u>loss</u>"})
    text = html.page(Comparison([odd], [Failure(odd.config, "<s>nan</s>")]), html.Path())
    assert Reader(text).open == []
    for raw in ("<b onclick", "<i>scenario", "<u>loss", "<s>nan"):
        assert raw not in text
    assert "&lt;b onclick=" in text
    assert "p: &lt;u&gt;loss&lt;/u&gt;" in text
    assert "&lt;s&gt;nan&lt;/s&gt;" in text


def test_a_protocols_name_cannot_leave_its_attribute():
    """Names in summary.json and metrics.jsonl are whatever somebody wrote there."""
    hostile = 'x"><script>alert(1)</script><svg onload=alert(2) a="\\1'
    odd = made_run()
    rows = [r | {"scores": {hostile: r["scores"]["personal"]}} for r in odd.history]
    found = odd.summary["protocols"]["personal"]
    summary = odd.summary | {"protocols": {hostile: found}}
    text = html.page(Comparison([RunResult(odd.config, rows, summary, None)]), html.Path())
    page = Reader(text)
    assert page.open == []
    assert "<script>alert" not in text
    assert text.count("<script") == 5  # the data, two libraries, our charts, the page's own
    assert "<svg onload" not in text
    assert all(re.fullmatch(r"[\w.-]+", found) for found in page.ids)


def test_the_page_forbids_scripts_of_others_and_loading():
    """Even if something slipped through: the browser runs our scripts alone and fetches nothing."""
    text = html.page(made(), html.Path())
    policy = re.search(
        r'http-equiv="Content-Security-Policy" content="([^"]*)"', text.partition("<style>")[0]
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert rules["style-src"] == "'unsafe-inline'"  # one style sheet in the page, styles in svg
    own = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in own]
    assert rules["script-src"].split() == [f"'sha256-{h}'" for h in hashes]
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_the_page_has_its_charts_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert 'data-chart="curves-0"' in html.page(made(), html.Path())


def test_a_page_of_no_runs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run is finished"):
        html.write(Comparison([]), tmp_path / "report.html")
