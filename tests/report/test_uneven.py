"""Measures beside accuracy where classes are uneven; differences to a method, in every format."""

from __future__ import annotations

import csv
import io
import math
import re

import pytest

import fedshift
from fedshift.base.errors import UnknownNameError
from fedshift.core.config import configure
from fedshift.evaluate.metrics import Count, Metrics
from fedshift.report import formats, html, screen, tables
from fedshift.report.results import Comparison, RunResult
from fedshift.runs.summary import summarise
from fedshift.testing import tiny_scenario

EVEN = {(0, 0): 5.0, (0, 1): 3.0, (1, 1): 8.0}  # by true and predicted class
UNEVEN = {(0, 0): 10.0, (0, 1): 3.0, (1, 1): 8.0}  # 13 against 8, more than 1.5 times


def made_run(method, seed, accuracy, auroc, cells=UNEVEN, **changes) -> RunResult:
    """A run that reports the same numbers in both domains."""
    config, _ = configure(method, tiny_scenario(protocols=("personal",), **changes), seed=seed)
    measures = {"accuracy": accuracy, "auroc": auroc, "balanced_accuracy": 50.0, "macro_f1": 40.0}
    count = [Count(d, d, accuracy, 21, 1.0, 1.0, measures, cells) for d in ("dark", "bright")]
    numbers = Metrics.of(count).to_json()
    history = [{"round": 1, "scores": {"personal": {"val": numbers, "test": numbers}}}]
    traffic = {"train": {"up": 1, "down": 1}, "total": {"up": 1, "down": 1}}
    facts = {"clients": 2, "parameters": 1, "shares": {}, "bytes": traffic, "seconds": 1}
    return RunResult(config, history, summarise(config, history, **facts), None)


def made(cells=UNEVEN, **changes) -> Comparison:
    """Accuracies differ by 10 in each seed, areas by 1, -1 and 3."""
    numbers = {
        "fedavg": [(70, 80), (72, 83), (74, 81)],
        "fedprox": [(60, 79), (62, 84), (64, 78)],
    }
    return Comparison(
        [
            made_run(method, seed, *pair, cells, **changes)
            for method, pairs in numbers.items()
            for seed, pair in enumerate(pairs)
        ]
    )


def plain(renderable, width=200) -> str:
    from rich.console import Console

    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize(("cells", "shown"), [(EVEN, False), (UNEVEN, True)])
def test_columns_beside_accuracy_are_there_where_classes_are_uneven(cells, shown, tmp_path):
    found = made(cells)
    pages = {
        "screen": plain(screen.console(found)),
        "markdown": formats.markdown(found),
        "latex": formats.latex(found),
        "html": html.page(found, tmp_path).partition("<h3>personal")[0],
        "notebook": found._repr_html_(),
    }
    for name, text in pages.items():
        for measure in ("AUROC", "balanced accuracy", "macro F1"):
            assert (f"personal {measure}" in text) == shown, name
    lines = csv.DictReader(io.StringIO(formats.csv(found)))
    assert {"auroc", "balanced_accuracy", "macro_f1"} <= {line["measure"] for line in lines}


def test_the_border_of_uneven_is_one_and_a_half_in_any_domain():
    def runs(largest):
        return [made_run("fedavg", 0, 70, 80, {(0, 0): float(largest), (1, 1): 10.0})]

    assert not tables.uneven(runs(15))
    assert tables.uneven(runs(16))
    assert not tables.uneven([made_run("fedavg", 0, 70, 80, {})])  # nobody knows
    assert not tables.uneven([made_run("fedavg", 0, 70, 80, {(2, 1): 9.0})])  # one class
    assert tables.uneven([made_run("fedavg", 0, 70, 80, EVEN, objective="multi-label")])


def test_bold_in_every_column_and_format_is_a_lead_beyond_the_interval(tmp_path):
    """Accuracy leads by 10 in every seed; AUROC by 1, -1 and 3: 1 with an interval of 4.97."""
    found = made()
    markdown = next(x for x in formats.markdown(found).splitlines() if x.startswith("| fedavg"))
    assert re.findall(r"\*\*(.*?)\*\*", markdown) == ["72.0 ± 5.0"]
    latex = next(x for x in formats.latex(found).splitlines() if x.strip().startswith("fedavg"))
    assert latex.count(r"\textbf") == 1
    page = html.page(found, tmp_path).partition("<h3>personal")[0]
    assert page.count('class="best"') == 1
    assert found._repr_html_().count("<b>") == 1


def test_differences_are_in_every_format(tmp_path):
    """Seed by seed -10, -10, -10 and -1, 1, -3: mean -1, s = 2, half-width 4.303 * 2 / sqrt(3)."""
    found = made()
    half = f"{4.302653 * 2 / math.sqrt(3):.1f}"
    assert half == "5.0"
    expected = f"-1.0 ± {half}"
    for text in (plain(screen.console(found, "fedavg")), formats.markdown(found, "fedavg")):
        assert expected in text
        assert "-10.0 ± 0.0" in text
        assert "paired by seed" in text
    latex = formats.latex(found, "fedavg")
    assert rf"-1.0 $\pm$ {half}" in latex
    assert latex.count(r"\begin{tabular}") == 2
    page = html.page(found, tmp_path, "fedavg")
    assert "difference to fedavg" in page
    assert "-1.0 ± 5.0" in page
    assert "difference to" not in html.page(found, tmp_path)
    rows = [
        line
        for line in csv.DictReader(io.StringIO(formats.csv(found, "fedavg")))
        if line["measure"] == "auroc minus fedavg"
    ]
    (row,) = rows
    assert (row["method"], row["seed"], row["protocol"]) == ("fedprox", "", "personal")
    assert float(row["value"]) == pytest.approx(-1.0)
    assert float(row["interval"]) == pytest.approx(4.302653 * 2 / math.sqrt(3))


def test_a_comparison_may_name_the_method_that_others_are_compared_with(tmp_path):
    named = Comparison(made().results, against="fedavg")
    assert formats.markdown(named) == formats.markdown(made(), "fedavg")
    assert "difference to fedavg" in named._repr_html_()
    apart = named.difference("fedprox", "fedavg", "tiny", "personal", key="auroc")
    assert apart.mean == pytest.approx(-1.0)
    with pytest.raises(UnknownNameError, match="did you mean fedavg"):
        formats.csv(made(), "fedagv")


def test_a_reference_that_is_not_compared_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr("fedshift.experiment.compare.execute", lambda *_: pytest.fail("trained"))
    with pytest.raises(UnknownNameError, match="no method of this comparison is called 'fedprox'"):
        fedshift.compare("fedavg", tiny_scenario(), against="fedprox", quiet=True)
