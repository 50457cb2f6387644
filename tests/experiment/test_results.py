"""Results behave in Python: short in a line, tables in a notebook, frames and figures on demand."""

from __future__ import annotations

import re

import pytest

import fedshift
from fedshift.base.errors import ConfigError, RunError, UnknownNameError
from fedshift.report.results import Comparison, Failure, RunResult
from fedshift.testing import tiny_scenario


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Comparison:
    out = tmp_path_factory.mktemp("runs")
    return fedshift.compare(
        ["fedavg", "fedbn"], [tiny_scenario()], seeds=[0, 1], out=out, rounds=2, workers=1
    )


def test_a_run_is_one_line(found):
    text = repr(found.results[0])
    number = found.results[0].accuracy("personal")
    assert text.startswith("<fedavg on tiny, seed 0, 2 rounds: personal ")
    assert f"personal {number:.1f}" in text
    assert "\n" not in text
    assert len(text) < 200


def test_a_comparison_is_one_line(found):
    assert repr(found) == "<4 runs: 2 methods, 1 scenarios, 2 seeds>"
    failed = Comparison(found.results, [Failure(found.results[0].config, "nan")])
    assert "1 failed" in repr(failed)


def test_a_notebook_shows_every_number_of_a_run(found):
    run = found.results[0]
    text = run._repr_html_()
    for protocol in run.summary["protocols"]:
        metrics = run.outcome(protocol).metrics
        assert f"<td>{protocol}</td>" in text
        assert f"<td>{metrics.avg:.1f}</td>" in text
        assert all(f"<th>{domain}</th>" in text for domain in metrics.domains)


def test_a_notebook_shows_a_comparison_and_a_lead_beyond_the_interval_in_bold(found):
    text = found._repr_html_()
    cells = [found.cell(m, "tiny", "personal") for m in found.methods]
    best = max(cells, key=lambda cell: cell.mean)
    assert best.shown in text
    lead = max(c.minus(d).mean for c in cells for d in cells)
    sure = cells[0].minus(cells[1]).interval < lead
    assert ("<b>" in text.split("</tr>")[cells.index(best) + 1].split("<td>")[2]) == sure
    assert "seeds" in text


def test_what_others_wrote_is_shown_as_text(found):
    config = found.results[0].config.model_copy(update={"method": "<script>x</script>"})
    odd = RunResult(config, found.results[0].history, found.results[0].summary, None)
    for text in (odd._repr_html_(), Comparison([odd], [Failure(config, "<i>")])._repr_html_()):
        assert "<script>" not in text
        assert "&lt;script&gt;" in text
        assert "<i>" not in text


def test_names_of_protocols_and_domains_are_shown_as_text(found):
    run = found.results[0]
    first = next(iter(run.summary["protocols"].values()))
    made = {
        choice: row | {"metrics": row["metrics"] | {"domains": {"<u>d": 1.0}}}
        for choice, row in first.items()
    }
    summary = run.summary | {"protocols": run.summary["protocols"] | {"<i>p": made}}
    odd = RunResult(run.config, run.history, summary, None)
    for text in (odd._repr_html_(), Comparison([odd])._repr_html_()):
        assert "<i>" not in text
        assert "<u>" not in text
    assert "&lt;i&gt;p" in odd._repr_html_()
    assert "&lt;u&gt;d" in odd._repr_html_()


def test_the_frame_of_a_run_is_its_history(found):
    pytest.importorskip("pandas")
    run = found.results[0]
    frame = run.to_frame()
    for protocol in run.summary["protocols"]:
        rows = frame[(frame.protocol == protocol) & (frame.split == "test")]
        assert list(zip(rows["round"], rows["avg"], strict=True)) == run.curve(protocol)
    assert {"domain:dark", "domain:bright", "worst", "loss"} <= set(frame.columns)


def test_the_frame_of_a_comparison_has_the_selected_numbers(found):
    pytest.importorskip("pandas")
    frame = found.to_frame()
    assert len(frame) == sum(len(r.summary["protocols"]) for r in found.results)
    for run in found.results:
        for protocol in run.summary["protocols"]:
            own = (frame.method == run.label) & (frame.seed == run.config.seed)
            (value,) = frame[own & (frame.protocol == protocol)]["avg"]
            assert value == run.accuracy(protocol)


def test_without_pandas_one_line_says_how_to_get_it(found, monkeypatch):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda module: module != "pandas")
    with pytest.raises(ConfigError, match="pip install pandas"):
        found.to_frame()


def test_a_figure_has_a_line_per_method(found):
    figure = found.plot()
    assert [line.get_label() for line in figure.axes[0].lines] == ["fedavg", "fedbn"]
    assert "personal" in figure.axes[0].get_title(loc="left")
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    alone = found.results[0].plot("global")
    assert "global" in alone.axes[0].get_title(loc="left")


def test_a_figure_of_something_else_is_refused(found):
    with pytest.raises(UnknownNameError, match="no protocol of these runs is called 'persona'"):
        found.plot("persona")
    with pytest.raises(ConfigError, match="no finished run to draw"):
        Comparison([]).plot()


def test_load_reads_a_run_or_a_folder_of_runs(found):
    first = found.results[0]
    again = fedshift.load(str(first.path))
    assert isinstance(again, RunResult)
    assert again.summary == first.summary
    folder = fedshift.load(found.path)
    assert isinstance(folder, Comparison)
    assert {r.config.name for r in folder.results} == {r.config.name for r in found.results}


def test_load_says_what_is_not_there(tmp_path):
    with pytest.raises(RunError, match="is not a folder"):
        fedshift.load(tmp_path / "none")
    with pytest.raises(RunError, match="holds no finished run"):
        fedshift.load(tmp_path)


def test_load_of_an_unfinished_run_says_how_to_go_on(tmp_path):
    fedshift.run("fedavg", tiny_scenario(), out=tmp_path / "r", rounds=1)
    (tmp_path / "r" / "summary.json").unlink()
    with pytest.raises(RunError, match="is not finished; continue it with resume=True") as caught:
        fedshift.load(tmp_path / "r")
    assert re.match(r"out=.*/r$", caught.value.options[0])
