"""Each kind of analysis on runs whose answer is known, and what it refuses."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics

import numpy as np
import pytest
import torch
from made_history import made_run, write_ledger

import fedshift
from fedshift.analyse import ANALYSES, analyse, options_of
from fedshift.analyse.finding import Finding, as_csv, as_json, as_markdown, shown
from fedshift.analyse.kinds.biased_features import pool_of
from fedshift.analyse.outputs import federation_of
from fedshift.base.errors import ConfigError, FedshiftError, UnknownNameError
from fedshift.cli import main
from fedshift.report.load import load_run
from fedshift.runs.predictions import FILE, KeptPredictions, write_predictions
from fedshift.testing import tiny_scenario

KINDS = {
    "curves", "reach", "radar", "cost", "spectrum", "embedding", "reliability", "domain-gap",
    "distances", "fusion-weights", "group-effect", "biased-features", "sweep", "ranking", "gradcam",
}  # fmt: skip


def two(*pairs):
    return [{"dark": float(a), "bright": float(b)} for a, b in pairs]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A plain method and F2DC, whose modules are private; one round each, everything recorded."""
    out = tmp_path_factory.mktemp("runs")
    scenario = tiny_scenario(
        rounds=1,
        epochs=1,
        protocols=("personal", "personal-trained", "global", "unseen"),
        analyses=("group-effect", "fusion-weights"),
    )
    for method in ("fedavg", "f2dc"):
        fedshift.run(method, scenario, out=out / method, quiet=True)
    pooled = scenario.change(analyses=(), protocols=("global",))
    fedshift.run("deepall", pooled, out=out / "pooled/deepall", quiet=True)
    plain = tiny_scenario(rounds=1, epochs=1, protocols=("global",))
    fedshift.run("fedavg", plain, out=out / "plain" / "fedavg", quiet=True)
    return out


@pytest.fixture
def fedavg(runs):
    return load_run(runs / "fedavg")


@pytest.fixture
def f2dc(runs):
    return load_run(runs / "f2dc")


@pytest.fixture
def plain(runs):
    return load_run(runs / "plain/fedavg")


def test_the_registry_has_every_kind_with_a_summary_and_documented_options():
    assert set(ANALYSES.entries()) == KINDS
    for name, entry in ANALYSES.entries().items():
        assert entry.summary
        told = {o for o in options_of(name) if entry.option_doc(o)}
        common = {"mixed", "protocol"}
        undocumented = set(options_of(name)) - told - common
        doc = entry.doc.partition("Options:")[2]
        assert {o for o in undocumented if o not in doc} == set(), name


# numbers of rounds


def test_curves_are_means_and_sample_deviations_over_seeds():
    made = [
        made_run(two((50, 60), (70, 90)), seed=0),
        made_run(two((54, 60), (60, 70)), seed=1),
        made_run(two((10, 20), (30, 40)), method="fedprox", seed=0),
        made_run(two((10, 20), (30, 40)), method="fedprox", seed=1),
    ]
    found = analyse("curves", made)
    last = found.table[1]
    assert (last["method"], last["round"], last["n"]) == ("fedavg", 2, 2)
    assert last["mean"] == pytest.approx(72.5)
    assert last["std"] == pytest.approx(statistics.stdev([80, 65]))
    assert "fedavg" in found.sentence
    assert "72.5" in found.sentence
    assert found.figure is not None


def test_curves_of_a_loss_prefer_the_lowest():
    made = [made_run(two((50, 60))), made_run(two((50, 60)), method="fedprox")]
    made[0].history[0]["scores"]["personal"]["test"]["loss"] = 2.0
    assert "fedprox" in analyse("curves", made, measure="loss").sentence


def test_rounds_bytes_and_steps_to_a_threshold_are_those_of_the_hand(tmp_path):
    write_ledger(
        tmp_path,
        {
            0: [("enrol", "up", 999)],
            1: [("train", "down", 10), ("train", "up", 5), ("score", "up", 777)],
            2: [("train", "down", 10), ("train", "up", 7)],
            3: [("train", "down", 1000)],
        },
    )
    more = [{"steps": 3}, {"steps": 4}, {"steps": 50}]
    run = made_run(two((40, 40), (70, 80), (80, 80)), path=tmp_path, more=more)
    (row,) = analyse("reach", [run], threshold=75).table
    assert (row["rounds"], row["bytes"], row["steps"]) == (2, 32, 7)
    (row,) = analyse("reach", [run], threshold="99").table  # as typed
    assert (row["rounds"], row["bytes"], row["reached"]) == (None, None, 0)


def test_the_default_threshold_is_the_highest_that_every_run_reaches():
    made = [
        made_run(two((40, 40), (90, 90))),
        made_run(two((60, 60), (50, 50)), method="fedprox"),
    ]
    found = analyse("reach", made)
    assert [(r["threshold"], r["rounds"], r["steps"]) for r in found.table] == [
        (60.0, 2, None),
        (60.0, 1, None),
    ]
    assert found.sentence.startswith("fedprox takes the fewest rounds to 60.0")
    assert any("no local steps" in note for note in found.notes)


def test_a_radar_has_a_spoke_per_domain_and_counts_who_is_best_where():
    a = made_run([{"x": 50.0, "y": 60.0, "z": 70.0}])
    b = made_run([{"x": 40.0, "y": 80.0, "z": 90.0}], method="fedprox")
    found = analyse("radar", [a, b])
    assert [row["mean"] for row in found.table] == [50, 60, 70, 40, 80, 90]
    assert "fedprox is best on 2 of 3 domains" in found.sentence
    with pytest.raises(ConfigError, match="three domains"):
        analyse("radar", [made_run(two((1, 2)))])


def test_cost_counts_bytes_per_visit_and_time_relative_to_the_control(tmp_path):
    def run(method, seconds, up):
        path = tmp_path / method
        write_ledger(
            path,
            {
                0: [("enrol", "up", 9999), ("enrol", "down", 9999)],
                1: [("train", "up", up), ("train", "up", 3 * up), ("train", "down", 7)],
            },
        )
        more = [{"seconds": s} for s in seconds]
        return made_run(two((1, 2), (1, 2), (1, 2)), method=method, path=path, more=more)

    made = [run("fedavg", [9.0, 2.0, 2.0], 100), run("fedprox", [1.0, 5.0, 9.0], 50)]
    rows = analyse("cost", made, flops="none").table
    assert [row["up"] for row in rows] == [200, 100]
    assert [row["down"] for row in rows] == [7, 7]
    assert [row["time / fedavg"] for row in rows] == [1.0, 2.5]
    found = analyse("cost", made[1:], flops="none")
    assert found.table[0]["time / fedavg"] is None
    assert any("fedavg is not among these runs" in note for note in found.notes)


def test_group_effects_are_the_recorded_ones():
    def run(seed, effects):
        more = [
            {"group-effect": {"group_effect": e, "local": 50.0, "aggregated": 50.0 - e, "tta": 0.0}}
            for e in effects
        ]
        return made_run(two((1, 2), (3, 4)), seed=seed, more=more)

    found = analyse("group-effect", [run(0, [4.0, -2.0]), run(1, [2.0, -6.0])])
    assert [row["group_effect"] for row in found.table] == [3.0, -4.0]
    assert found.table[0]["std"] == pytest.approx(math.sqrt(2))
    assert "gains 0.5 points" in found.sentence


def test_a_sweep_groups_values_and_seeds():
    def run(mu, seed, value):
        return made_run(two((value, value)), method=f"fedprox[mu={mu}]", seed=seed)

    made = [run(0.1, 0, 50), run(0.1, 1, 60), run(0.01, 0, 40), run(0.01, 1, 44)]
    found = analyse("sweep", made)
    rows = [(r["method"], r["setting"], r["value"], r["mean"], r["n"]) for r in found.table]
    assert rows == [("fedprox", "mu", 0.01, 42, 2), ("fedprox", "mu", 0.1, 55, 2)]
    assert found.table[1]["std"] == pytest.approx(statistics.stdev([50, 60]))
    assert "mu=0.1" in found.sentence
    assert "13.0 points" in found.sentence
    rates = [made_run(two((v, v)), lr=lr) for lr, v in ((0.1, 70), (0.5, 30))]
    table = analyse("sweep", rates, over="scenario.lr", split="val").table
    assert [(r["value"], r["mean"], r["std"]) for r in table] == [(0.1, 70, None), (0.5, 30, None)]
    for runs, over in (([made_run(two((1, 2)))], ""), (made, "nu")):
        with pytest.raises(ConfigError, match="no method has two values"):
            analyse("sweep", runs, over=over)


def test_a_sweep_of_two_settings_has_a_line_for_each_value_of_the_other():
    def run(word, value):
        return made_run(two((value, value)), method=f"moon{word}")

    made = [
        run("", 50),  # tau=0.5, mu=1.0
        run("[tau=0.1]", 40),
        run("[mu=5.0]", 60),
        run("[tau=0.1, mu=5.0]", 30),
        made_run(two((1, 1))),  # has none of both
    ]
    found = analyse("sweep", made)
    lines = {}
    for row in found.table:
        lines.setdefault((row["setting"], row["method"]), []).append((row["value"], row["mean"]))
    assert lines == {
        ("tau", "moon"): [(0.1, 40), (0.5, 50)],
        ("tau", "moon[mu=5.0]"): [(0.1, 30), (0.5, 60)],
        ("mu", "moon"): [(1.0, 50), (5.0, 60)],
        ("mu", "moon[tau=0.1]"): [(1.0, 40), (5.0, 30)],
    }
    one_at_a_time = analyse("sweep", made[:3]).table  # a single point is no line
    assert {(row["setting"], row["method"]) for row in one_at_a_time} == {
        ("tau", "moon"),
        ("mu", "moon"),
    }


def test_a_ranking_is_over_the_domains_and_seeds_that_all_have():
    made = [
        made_run(two((90 - 10 * i, 80 - 10 * i)), method=m, seed=s)
        for i, m in enumerate(("fedavg", "fedprox", "fedbn"))
        for s in (0, 1)
    ]
    found = analyse("ranking", [*made, made_run(two((0, 0)), seed=7)])
    assert [(r["method"], r["mean_rank"], r["blocks"]) for r in found.table] == [
        ("fedavg", 1.0, 4),
        ("fedprox", 2.0, 4),
        ("fedbn", 3.0, 4),
    ]
    # Nemenyi: q(0.05, 3, inf) = 2.343 / sqrt(2) as tabled, times sqrt(k (k + 1) / (6 N))
    assert found.table[0]["critical_difference"] == pytest.approx(
        2.343 * math.sqrt(12 / 24), abs=1e-3
    )
    assert any("kept: [0, 1]" in note for note in found.notes)


# what may stand side by side


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"scored": "trained"}, "scored"), ({"scale": "bench"}, "scale"), ({"lr": 0.5}, "lr"),
     ({"selection": "oracle"}, "selection")],
)  # fmt: skip
def test_runs_that_differ_in_more_than_the_method_are_refused_and_labelled_if_asked(changes, word):
    made = [made_run(two((50, 60))), made_run(two((70, 80)), method="fedprox", **changes)]
    with pytest.raises(ConfigError, match=f"differ in {word}") as refused:
        analyse("curves", made)
    assert refused.value.options == ("mixed",)
    labels = [row["method"] for row in analyse("curves", made, mixed=True).table]
    assert all(f"{word}=" in label for label in labels)


def test_runs_of_other_data_are_refused_but_not_for_a_public_set_of_one_method():
    def run(method, data, *allow):
        made = made_run(two((50, 60)), method=method, allow=("client_val", "domain_ids", *allow))
        return dataclasses.replace(made, config=made.config.model_copy(update={"data": data}))

    with pytest.raises(ConfigError, match="differ in data version"):
        analyse("curves", [run("fedavg", "a"), run("fedprox", "b")])
    found = analyse("curves", [run("fedavg", "a"), run("fedprox", "ab", "public_set")])
    assert {row["method"] for row in found.table} == {"fedavg", "fedprox"}


def test_protocols_are_not_mixed_unless_asked():
    made = [
        made_run(two((50, 60))),
        made_run(two((70, 80)), method="fedprox", protocol="global"),
    ]
    with pytest.raises(ConfigError, match="no protocol in common"):
        analyse("curves", made)
    labels = {row["method"] for row in analyse("curves", made, mixed=True).table}
    assert labels == {"fedavg (personal)", "fedprox (global)"}
    with pytest.raises(ConfigError, match="not scored under 'global'") as refused:
        analyse("curves", made[:1], protocol="global")
    assert refused.value.options == ("scenario.protocols=personal,global",)


def test_what_is_about_classes_refuses_runs_of_numbers_and_of_other_classes():
    number = made_run(two((1, 2)), objective="regression")
    for kind in ("embedding", "gradcam", "reliability", "domain-gap", "biased-features"):
        with pytest.raises(ConfigError, match="is about classes"):
            analyse(kind, [number])
    a, b = made_run(two((1, 2))), made_run(two((1, 2)), method="fedprox")
    a.summary["classes"], b.summary["classes"] = ["x", "y"], ["x", "z"]
    with pytest.raises(ConfigError, match="these runs have others"):
        analyse("embedding", [a, b])


def test_one_run_twice_and_no_run_are_refused():
    with pytest.raises(ConfigError, match="there twice with seed 0"):
        analyse("curves", [made_run(two((1, 2)))] * 2)
    with pytest.raises(ConfigError, match="no run"):
        analyse("curves", [])


def test_unknown_kinds_and_options_are_named():
    with pytest.raises(UnknownNameError, match="curves"):
        analyse("curvs", [made_run(two((1, 2)))])
    with pytest.raises(UnknownNameError, match="threshold"):
        analyse("reach", [made_run(two((1, 2)))], thresholds=3)


# models and predictions of trained runs


def test_what_a_run_did_not_keep_names_the_option_that_keeps_it(plain):
    wanted = {
        "group-effect": "scenario.analyses=group-effect",
        "fusion-weights": "scenario.analyses=fusion-weights",
        "biased-features": "scenario.protocols=global,personal-trained",
        "distances": "scenario.protocols=global,personal-trained",
    }
    for kind, option in wanted.items():
        with pytest.raises(FedshiftError) as refused:
            analyse(kind, [plain])
        assert refused.value.options == (option,), kind
    for kind in ("spectrum", "embedding", "gradcam", "reliability", "domain-gap"):
        with pytest.raises(FedshiftError) as refused:
            analyse(kind, [made_run(two((1, 2)))])
        assert refused.value.options == ("out=DIR",), kind


def test_fedavgs_weights_are_the_shares_of_the_examples(fedavg):
    found = analyse("fusion-weights", [fedavg])
    rows = [row for row in found.table if row["layer"] == "block1"]
    examples = json.loads((fedavg.path / "checkpoints/roster.json").read_text())
    total = sum(r["examples"] for r in examples.values())
    assert len(rows) == 4
    for row in rows:
        wanted = examples[row["client"]]["examples"] / total
        assert row["weight"] == pytest.approx(wanted, abs=1e-3)


def test_steps_of_a_round_are_those_of_all_clients(fedavg):
    # 11, 11, 7 and 6 samples in batches of 4; a single last one joins the batch before it
    assert fedavg.history[0]["steps"] == 3 + 3 + 2 + 2


def test_features_have_a_spectrum_for_each_domain_and_all(fedavg, f2dc):
    found = analyse("spectrum", [fedavg, f2dc], samples=12)
    own = {(r["method"], r["domain"]) for r in found.table}
    assert {d for m, d in own if m == "fedavg"} == {"dark", "bright", "tinted", "all"}
    assert {d for m, d in own if m == "f2dc"} == {"dark", "bright", "all"}  # no model elsewhere
    assert any("first site" in note for note in found.notes)
    assert all(1 <= r["effective_rank"] <= 16 for r in found.table)


def test_an_embedding_has_a_point_per_sample_and_panels_per_method(fedavg):
    found = analyse("embedding", [fedavg], by="pca", domains="dark,bright", samples=10)
    assert len(found.table) == 20
    assert {row["domain"] for row in found.table} == {"dark", "bright"}
    assert {row["class"] for row in found.table} <= set("abcd")
    with pytest.raises(UnknownNameError, match="dark"):
        analyse("embedding", [fedavg], domains="darc")


def test_reliability_is_of_the_kept_predictions(plain, tmp_path):
    out = np.log(np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]))
    run = type(plain)(plain.config, plain.history, plain.summary, tmp_path)
    kept = KeptPredictions(
        "global", 1, "dark", torch.tensor([0, 1, 1]), torch.tensor(out, dtype=torch.float32)
    )
    write_predictions(tmp_path, [kept])
    found = analyse("reliability", [run], bins=10)
    assert [(r["samples"], r["accuracy"]) for r in found.table] == [(1, 1.0), (1, 0.0), (1, 1.0)]
    # |1 - 0.7|, |0 - 0.8|, |1 - 0.9|, each a third
    assert "40.0 %" in found.sentence
    (tmp_path / FILE).unlink()
    with pytest.raises(ConfigError, match="keeps no predictions"):
        analyse("reliability", [run])


def test_domains_are_compared_by_models_and_by_distances(fedavg):
    rows = analyse("domain-gap", [fedavg], on="inputs").table
    by = {(r["train"], r["test"]): r for r in rows}
    assert len(rows) == 9
    assert by["dark", "bright"]["proxy_a"] == by["bright", "dark"]["proxy_a"]
    assert by["dark", "bright"]["proxy_a"] == 2.0  # brighter by 60 of 255: told apart without error
    assert by["dark", "dark"]["proxy_a"] is None
    own = dict(fedavg.curve("personal-trained", "domains"))[1]
    assert by["dark", "dark"]["accuracy"] == pytest.approx(own["dark"])
    assert by["tinted", "dark"]["accuracy"] is None
    with pytest.raises(ConfigError, match="of one method"):
        analyse("domain-gap", [fedavg, made_run(two((1, 2)), method="fedprox")], mixed=True)


def test_distances_count_every_pair_of_sites(fedavg):
    rows = analyse("distances", [fedavg]).table
    assert {row["layer"] for row in rows} == {"block1", "block2", "block3", "head"}
    assert {(row["pairs_intra"], row["pairs_inter"]) for row in rows} == {(2, 4)}
    assert all(row["ratio"] == pytest.approx(row["inter"] / row["intra"]) for row in rows)
    with pytest.raises(ConfigError, match="not two sites of one domain"):
        analyse("distances", [fedavg], across_runs="true")


def test_biased_features_compare_a_site_with_the_global_model(fedavg):
    found = analyse("biased-features", [fedavg], site="bright-0")
    assert {row["unseen"] for row in found.table} == {"domains"}
    assert sum(row["true"] for row in found.table) == pytest.approx(1)
    assert sum(row["local"] for row in found.table) == pytest.approx(1)
    assert sum(row["one_local"] for row in found.table) == pytest.approx(1)
    assert found.table[0]["shift"] > 0
    with pytest.raises(UnknownNameError, match="bright-0"):
        analyse("biased-features", [fedavg], site="brite-0")


def test_what_a_site_has_seen_are_its_domain_or_its_classes(fedavg):
    federation = federation_of(fedavg)
    pool, seen = pool_of(federation, "bright-0", "domains", np.ones(4), 100)
    numbers = pool.domains_at(torch.arange(len(pool))).numpy()
    assert seen.sum() == 16
    assert (seen == (numbers == 1)).all()  # bright is the second domain
    pool, seen = pool_of(federation, "bright-0", "classes", np.array([5, 0, 1, 0]), 100)
    assert (seen == np.isin(pool.labels.numpy(), [0, 2])).all()


def test_the_reference_of_biased_features_is_a_run_on_pooled_data_if_there_is_one(fedavg, runs):
    pooled = load_run(runs / "pooled/deepall")
    found = analyse("biased-features", [fedavg, pooled], site="dark-0")
    assert {row["method"] for row in found.table} == {"fedavg"}
    own = analyse("biased-features", [fedavg], site="dark-0")
    assert found.table[0]["gap_local"] == own.table[0]["gap_local"]
    assert found.table[0]["gap_global"] != own.table[0]["gap_global"]
    with pytest.raises(ConfigError, match="no local model"):
        analyse("biased-features", [pooled])


def test_gradcam_shows_f2dcs_parts_and_no_cell_without_a_model(fedavg, f2dc):
    found = analyse("gradcam", [fedavg, f2dc], label="c")
    maps = [(r["method"], r["map"]) for r in found.table if r["domain"] == "dark"]
    assert maps == [("fedavg", "whole"), *(("f2dc", m) for m in ("whole", "f+", "f-", "f*"))]
    assert {r["class"] for r in found.table} == {"c"}
    assert {r["domain"] for r in found.table if r["method"] == "f2dc"} == {"dark", "bright"}
    assert found.figure is not None
    with pytest.raises(ConfigError, match="sample is 99"):
        analyse("gradcam", [fedavg], sample=99)


def test_without_captum_gradcam_is_one_line(fedavg, monkeypatch):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda module: module != "captum")
    with pytest.raises(ConfigError, match=r'captum, which is not installed; pip install "fedshift'):
        analyse("gradcam", [fedavg])


def test_without_matplotlib_an_analysis_has_its_table(monkeypatch, tmp_path):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda _: False)
    found = analyse("curves", [made_run(two((1, 2)))])
    assert found.figure is None
    assert found.table
    with pytest.raises(ConfigError, match="figures need matplotlib"):
        found.write(tmp_path / "a.png")


# what is written


def test_tables_are_written_as_csv_json_and_markdown():
    made = Finding([{"a": 1.5, "b": None}, {"a": math.nan, "b": "x|y"}], None, "So it is.", ("n",))
    assert list(csv.DictReader(io.StringIO(as_csv(made))))[1]["b"] == "x|y"
    told = json.loads(as_json(made))
    assert told["table"][1]["a"] is None
    assert told["sentence"] == "So it is."
    assert r"| – | x\|y |" in as_markdown(made)  # noqa: RUF001
    assert shown(123456.0) == "123456"


def typed(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(w) for w in words])
    told = capsys.readouterr()
    return stop.value.code, told.out, told.err


def test_the_command_prints_the_sentence_and_writes_what_is_asked(runs, tmp_path, capsys):
    files = [tmp_path / name for name in ("a.png", "a.csv", "a.json", "a.md", "a.svg")]
    outs = [word for path in files for word in ("-o", path)]
    code, out, _ = typed(capsys, "analyse", "curves", runs, *outs, "--protocol", "personal")
    assert code == 0
    assert out.startswith("After round 1")
    assert all(path.stat().st_size for path in files)
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    code, out, _ = typed(
        capsys, "analyse", "reach", runs / "fedavg", "--set", "threshold=1", "--json"
    )
    assert code == 0
    assert json.loads(out)["table"][0]["threshold"] == 1.0


def test_a_mistake_on_the_command_line_is_one_line_and_code_2(runs, capsys, tmp_path):
    for words, said in (
        (("group-effect", runs / "plain"), "--set scenario.analyses=group-effect"),
        (("curves", runs / "fedavg", "-o", tmp_path / "a.docx"), ".docx"),
        (("curves", runs / "nowhere"), "not a folder"),
        (("curvs", runs / "fedavg"), "curves"),
        (("curves",), "no runs to look at"),
        ((), "--list"),
        (("radar", runs / "fedavg", "--set", "scaled=maybe"), "scaled is 'maybe'"),
        (("curves", runs / "fedavg", runs / "plain", "--protocol", "unseen"), "there twice"),
    ):
        code, _, err = typed(capsys, "analyse", *words)
        assert code == 2, words
        assert said in err, words
        assert err.count("\n") == 1, words


def test_kinds_and_their_options_are_listed(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path))
    assert all(kind in typed(capsys, "analyse", "--list")[1] for kind in KINDS)
    assert "domain-gap" in typed(capsys, "list", "analyses")[1]
    code, out, _ = typed(capsys, "analyse", "reach", "--list")
    assert code == 0
    assert "threshold=None  in per cent" in out
