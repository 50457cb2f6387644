"""Tables as people have them: gaps, identifiers, odd labels, numbers to predict, given splits."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.data.catalogue import CATALOGUE, Variant
from fedshift.data.library import inspection
from fedshift.data.library.datasets import add, card_of
from fedshift.data.library.loaded import load
from fedshift.data.library.prepare import load as load_card
from fedshift.data.library.prepare import store_of
from fedshift.data.sources.discover import find
from fedshift.data.sources.tables.federated import table_sources
from fedshift.data.sources.tables.preparation import CategoryPlan
from fedshift.data.sources.tables.reading import read_table
from fedshift.data.sources.tables.replay import preparation_of, read_record, replay
from fedshift.data.sources.tables.roles import ColumnSummary, role_of
from fedshift.data.sources.tables.schema import TableSchema, schema_of


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)


def write(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def hospitals(root, gaps=0.6):
    """Four hospitals; one lacks a column altogether, most lack another in most rows."""
    rng = np.random.default_rng(0)
    for k, (name, rows) in enumerate({"a": 60, "b": 50, "c": 24, "d": 40}.items()):
        age, chol = rng.normal(54 + k, 9, rows).round(1), rng.normal(240, 50, rows).round()
        cp = rng.choice(["typical", "atypical", "asympt"], rows)
        y = (age - 54 + 6 * (cp == "asympt") + rng.normal(0, 3, rows) > 2).astype(int)
        lines = [
            (
                f"{k}{i:04d}",
                age[i],
                "?" if name == "c" or rng.random() < gaps * (k > 0) else chol[i],
                cp[i] if rng.random() > 0.1 else "",
                "F",
                y[i],
            )
            for i in range(rows)
        ]
        write(root / f"{name}.csv", "patient_id, age,chol,cp,ward,num", lines)
    return root


def sources(path, **told):
    files = sorted(path.glob("*")) if path.is_dir() else [path]
    return table_sources(files, TableSchema(**told))


def read(path, **told):
    found = sources(path, **told)
    return {s.name: s.read(s.classes, None) for s in found.sources}


def test_missing_values_are_filled_and_no_labelled_row_is_lost(tmp_path):
    found = read(hospitals(tmp_path / "raw"), label="num")
    assert {name: len(one.domain.y) for name, one in found.items()} == {
        "a": 60, "b": 50, "c": 24, "d": 40,
    }  # fmt: skip
    for one in found.values():
        assert one.left_out == ()
        assert one.domain.x.isfinite().all()
        assert one.domain.classes == ("0", "1")


def test_identifiers_and_constants_are_no_inputs(tmp_path):
    found = sources(hospitals(tmp_path / "raw"), label="num")
    roles = {name: one["role"] for name, one in found.files["table.json"]["roles"].items()}
    assert roles == {
        "patient_id": "id-like", "age": "numeric", "chol": "numeric", "cp": "categorical",
        "ward": "constant",
    }  # fmt: skip
    assert any("'patient_id' is id-like" in note for note in found.notes)
    # age, chol, chol missing, three kinds of pain, pain missing
    assert found.sources[0].read(("0", "1"), None).domain.shape == (7,)


@pytest.mark.parametrize(
    ("told", "width"),
    [
        ({"drop": "chol, cp"}, 1),
        ({"numeric": "patient_id"}, 8),
        ({"categorical": ["ward"]}, 8),
        ({"drop": "age,chol", "categorical": "cp"}, 4),
    ],
)
def test_what_the_user_says_of_columns_comes_first(told, width, tmp_path):
    found = read(hospitals(tmp_path / "raw"), label="num", **told)
    assert found["a"].domain.shape == (width,)


def test_statistics_come_from_training_rows_only(tmp_path):
    rows = [(i % 2, v, split) for i, (v, split) in enumerate(
        [(0.0, "train"), (4.0, "train"), (1000.0, "test"), (500.0, "val")]
    )]  # fmt: skip
    path = write(tmp_path / "t.csv", "label,a,split", rows)
    domain = read(path)["t"].domain
    assert domain.x.flatten().tolist() == [-1.0, 1.0, 499.0, 249.0]  # mean 2, deviation 2
    assert domain.split.tolist() == [0, 0, 2, 1]


def test_a_drawn_test_row_is_not_in_the_statistics(tmp_path):
    rng = np.random.default_rng(0)
    path = write(
        tmp_path / "t.csv", "label,a", [(i % 2, v) for i, v in enumerate(rng.normal(size=50))]
    )
    domain = read(path)["t"].domain
    train = domain.x[domain.split == 0]
    assert (domain.split == 2).sum() == 10
    assert train.mean().item() == pytest.approx(0, abs=1e-6)
    assert train.std(correction=0).item() == pytest.approx(1, abs=1e-6)


def test_split_codes_of_a_file_are_train_test_validation(tmp_path):
    path = write(tmp_path / "t.csv", "label,a,split", [(0, 1, 0), (1, 2, 1), (0, 3, 2), (1, 4, 0)])
    assert read(path)["t"].domain.split.tolist() == [0, 2, 1, 0]
    path = write(tmp_path / "t.csv", "label,a,split", [(0, 1, "Train"), (1, 2, "TEST"), (1, 3, "")])
    with pytest.raises(
        DataError, match=r"t.csv:4 of site 't': column 'split' holds 'nothing'; exp"
    ):
        read(path)
    assert len(read(path, drop="split")["t"].domain.y) == 3


def test_rows_of_one_patient_are_never_on_both_sides(tmp_path):
    rows = [(i % 2, f"p{i // 4}", i % 7, i * i % 11) for i in range(120)]
    path = write(tmp_path / "t.csv", "label,patient_id,a,b", rows)
    found = sources(path)
    assert "rows of one 'patient_id' are drawn together" in found.notes[-1]
    split = found.sources[0].read(("0", "1"), None).domain.split.reshape(30, 4)
    assert (split == split[:, :1]).all()
    assert (split == 2).sum() == 24


def test_a_number_is_a_regression_target_not_a_class(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(round(p, 2), *rng.normal(size=2)) for p in rng.normal(20, 5, 60)]
    path = write(tmp_path / "t.csv", "price,a,b", rows)
    found = sources(path, label="price")
    (only,) = found.sources
    domain = only.read(only.classes, None).domain
    assert (domain.objective, domain.classes) == ("regression", ("price",))
    assert domain.y.tolist() == pytest.approx([p for p, *_ in rows])
    assert "regression; objective=classification makes them classes" in found.notes[0]
    assert read(path, label="price", objective="classification")["t"].domain.objective == (
        "classification"
    )


@pytest.mark.parametrize(
    ("labels", "objective"),
    [
        ([0, 1, 2] * 10, "classification"),
        (list(range(30)) * 2, "classification"),  # numbered from 0 without a gap
        (list(range(29, 77)), "regression"),  # ages
        ([0.5, 1.5] * 10, "classification"),
        (["x", "y"] * 5, "classification"),
        ([1.5, 2.5, 3.1, *range(30)], "regression"),
    ],
)
def test_the_objective_follows_from_the_labels(labels, objective, tmp_path):
    rows = [(label, i * i % 7) for i, label in enumerate(labels)]
    assert read(write(tmp_path / "t.csv", "label,a", rows))["t"].domain.objective == objective


def test_several_label_columns_are_a_multi_label_target(tmp_path):
    rows = [(1, 0, "yes", 0.5), (0, 0, "no", 1), (1, 1, "no", 2)]
    path = write(tmp_path / "t.csv", "cough,fever,ache,a", rows)
    domain = read(path, label="cough, fever,ache")["t"].domain
    assert (domain.objective, domain.classes) == ("multi-label", ("cough", "fever", "ache"))
    assert domain.y.tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    write(path, "cough,fever,ache,a", [(1, 0, "yes and no", 0.5)])
    with pytest.raises(DataError, match=r"'ache' holds 'yes and no'; several labels need 0 or 1"):
        read(path, label="cough,fever,ache")


def test_numbers_with_a_unit_and_dates_that_may_be_two_are_told(tmp_path):
    rows = [(i % 2, f"{i} mg", f"A{i}", f"{i % 9}th", f"1/{i % 9 + 1}/24") for i in range(40)]
    notes = sources(write(tmp_path / "t.csv", "label,dose,room,floor,seen", rows)).notes
    assert [note for note in notes if "holds" in note] == [
        "column 'dose' is taken for names and holds numbers with a sign or unit, such as '0 mg'; "
        "write the numbers alone",
        "column 'seen' is taken for names and holds dates whose day and month are not told apart, "
        "such as '1/1/24'; write 2024-12-31",
    ]
    rows = [(i % 2, f"{i} {'kg' if i % 3 else 'lb'}", i) for i in range(40)]
    notes = sources(write(tmp_path / "u.csv", "label,a,b", rows)).notes
    assert not [note for note in notes if "holds" in note]


def test_categories_with_other_capitals_are_one_column(tmp_path):
    head = "label,sex,x"
    for name, words in (("a", "Male Female Male"), ("b", "male female male"), ("c", "M F M")):
        rows = [(i % 2, words.split()[i % 3], i * i) for i in range(9)]
        write(tmp_path / "raw" / f"{name}.csv", head, rows)
    found = sources(tmp_path / "raw")
    assert "column 'sex': sites write names differently; taken as the same: Fem" in found.notes[0]
    plan = found.files["preparation.json"]["all"]["plans"][0]
    assert plan["categories"] == ("F", "M", "female", "male")
    assert plan["fill"] == "male"  # in both spellings more rows than M
    x = {s.name: s.read(s.classes, None).domain.x[:, :4] for s in found.sources}
    np.testing.assert_array_equal(x["a"], x["b"])
    np.testing.assert_array_equal(x["a"].argmax(1), [3, 2, 3] * 3)
    np.testing.assert_array_equal(x["c"].argmax(1), [1, 0, 1] * 3)


@pytest.mark.parametrize("name", ["ID", "Patient ID", "PATIENT_ID", "MRN", "userId"])
def test_a_column_called_id_is_no_input_however_it_is_written(name):
    column = ColumnSummary(99, 0, 99, number=True)
    assert role_of(name, [column])[0] == "id-like"
    assert role_of("acid", [column])[0] == "numeric"


def test_a_new_site_may_write_a_category_in_another_way():
    cells = np.array(["male", "Male", "FEMALE", "other"], dtype=object)
    found = CategoryPlan("sex", categories=("Female", "Male")).apply(cells)
    np.testing.assert_array_equal(found, [[0, 1], [0, 1], [1, 0], [0, 0]])


def two(tmp_path, first, second):
    for name, labels in (("a", first), ("b", second)):
        write(tmp_path / "raw" / f"{name}.csv", "label,x", [(v, i) for i, v in enumerate(labels)])
    return tmp_path / "raw"


def test_yes_and_no_at_one_site_are_one_and_zero(tmp_path):
    found = sources(two(tmp_path, ["yes", "no", "Yes"], [0, 1, 1]))
    assert "taken as the same: Yes = 1, no = 0, yes = 1" in found.notes[0]
    domains = [s.read(s.classes, None).domain for s in found.sources]
    assert [d.y.tolist() for d in domains] == [[1, 0, 1], [0, 1, 1]]


def test_labels_in_another_spelling_are_the_same_and_others_are_asked_for(tmp_path):
    path = two(tmp_path, ["Sick", "Well"], ["sick", "well"])
    assert read(path)["a"].domain.classes == ("sick", "well")
    path = two(tmp_path, ["Sick", "well"], ["sick", "well"])  # though one label is common
    assert read(path)["a"].domain.classes == ("sick", "well")
    assert "taken as the same: Sick = sick" in sources(path).notes[0]
    path = two(tmp_path, ["A", "a", "b"], ["A", "b"])
    assert read(path)["b"].domain.classes == ("A", "a", "b")
    assert "stay several, as one site has: A, a" in sources(path).notes[0]
    path = two(tmp_path, ["ill", "fine"], ["sick", "well"])
    with pytest.raises(DataError, match="sites share no label: a has fine, ill; b has sick, well"):
        read(path)
    told = {"ill": "sick", "fine": "well"}
    assert read(path, rename_label=told)["a"].domain.y.tolist() == [0, 1]
    assert read(two(tmp_path, ["1.0", "0.0"], ["0", "1"]))["a"].domain.classes == ("0", "1")
    assert read(two(tmp_path, [0, 0, 0], [1, 1, 1]))["a"].domain.classes == ("0", "1")


def test_rows_without_a_label_are_left_out_and_many_of_them_are_an_error(tmp_path):
    path = write(tmp_path / "t.csv", "label,a", [("", 1), *((i % 2, i % 5) for i in range(30))])
    found = read(path)["t"]
    assert found.left_out == ("t.csv:2: column 'label' is empty; give the row a label",)
    assert len(found.domain.y) == 30
    rows = [("?" if i % 3 else i % 2, i % 5) for i in range(30)]
    path = write(tmp_path / "t.csv", "label,a", rows)
    with pytest.raises(
        DataError, match=r"left out: t 20 of 30; empty in the columns label \(20\)"
    ) as e:
        read(path)
    assert e.value.options == ("may_drop=SHARE",)
    assert len(read(path, may_drop=0.7)["t"].domain.y) == 10


def test_dropping_rows_with_gaps_names_columns_sites_and_the_option_that_keeps_them(tmp_path):
    raw = hospitals(tmp_path / "raw")
    with pytest.raises(DataError) as caught:
        read(raw, label="num", impute="drop")
    text = str(caught.value)
    assert re.search(
        r"c 24 of 24, d \d+ of 40; empty in the columns chol \(\d+\), cp \(\d+\)", text
    )
    assert caught.value.options == ("impute=median", "may_drop=SHARE")
    kept = read(raw, label="num", impute="drop", may_drop=1)
    assert sorted(kept) == ["a", "b", "d"]
    assert kept["a"].domain.shape == (5,)  # nothing is missing: no indicators


def test_columns_must_agree_and_the_message_names_those_that_do_not(tmp_path):
    write(tmp_path / "raw" / "one.csv", "label,a,b", [(1, 2, 3), (0, 1, 2)])
    write(tmp_path / "raw" / "two.csv", "b,a,label", [(3, 2, 1), (2, 1, 0)])
    found = read(tmp_path / "raw")
    assert found["one"].domain.x.tolist() == found["two"].domain.x.tolist()
    write(tmp_path / "raw" / "two.csv", "label,a,c", [(1, 2, 3)])
    with pytest.raises(
        DataError, match=r"two.csv and one.csv do not both have the column b, c"
    ) as e:
        read(tmp_path / "raw")
    assert e.value.options == ("drop=b,c",)
    assert read(tmp_path / "raw", drop="b,c")["one"].domain.shape == (1,)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {"label": "nmu"},
            "has no column 'nmu'; it has patient_id, age, chol, cp, ward, num; name",
        ),
        ({"label": "num", "drop": "aeg"}, "no column is called 'aeg'; did you mean age"),
        ({"label": "num", "numeric": "aeg"}, "no column is called 'aeg'; did you mean age"),
        ({"label": "num", "domain": "sight"}, "has no column 'sight'"),
        ({"label": "num", "drop": "age,chol,cp"}, "no column can be an input: patient_id .id-like"),
        ({"label": "ward"}, "the label is always 'F'; two classes are needed"),
    ],
)
def test_columns_that_do_not_fit_are_named(told, expected, tmp_path):
    with pytest.raises((DataError, UnknownNameError), match=expected):
        read(hospitals(tmp_path / "raw"), **told)


def test_names_of_columns_are_stripped_like_headers(tmp_path):
    found = read(hospitals(tmp_path / "raw"), label=" num ", drop=" age ")
    assert found["a"].domain.shape == (6,)
    rows = [(i % 2, "xy"[i > 9], i * i % 7) for i in range(20)]
    path = write(tmp_path / "t.csv", "label, clinic ,a", rows)
    assert sorted(read(path, domain=" clinic ")) == ["x", "y"]


def test_cells_that_are_no_numbers_count_as_missing_and_are_told(tmp_path):
    rows = [(i % 2, "oops" if i == 7 else i / 3) for i in range(20)]
    found = sources(write(tmp_path / "t.csv", "label,a", rows))
    assert "column 'a' has cells that are no numbers (1, such as 'oops'): they" in found.notes[0]
    x = found.sources[0].read(("0", "1"), None).domain.x
    assert x[:, 1].nonzero().flatten().tolist() == [7]


def test_dates_and_row_numbers_and_sites_are_recognised(tmp_path):
    rows = [
        (i % 2, "ab"[i % 2 == (i > 30)], f"2020-03-{i % 28 + 1:02d}", i, i % 9) for i in range(60)
    ]
    path = write(tmp_path / "t.csv", "label,site,day,Unnamed: 0,x", rows)
    found = table_sources([path])
    roles = {name: one["role"] for name, one in found.files["table.json"]["roles"].items()}
    assert roles == {"day": "date", "Unnamed: 0": "id-like", "x": "numeric"}
    found = table_sources([path], TableSchema(domain="label", label="site"))
    assert [s.name for s in found.sources] == ["0", "1"]
    path = write(tmp_path / "u.csv", "label,n,x", [(i % 2, i + 100, i % 9) for i in range(60)])
    roles = table_sources([path]).files["table.json"]["roles"]
    assert roles["n"]["why"] == "a number per row, nearly without gaps"
    rows = [("" if i == 30 else i % 2, i + 100, i / 59, i % 9) for i in range(60)]
    path = write(tmp_path / "v.csv", "label,Case ID,x,", [(*row[:3], row[3]) for row in rows])
    found = table_sources([path]).files["table.json"]["roles"]
    assert {name: one["role"] for name, one in found.items()} == {
        "Case ID": "id-like", "x": "numeric", "": "numeric",
    }  # fmt: skip
    path = write(
        tmp_path / "w.csv", ",label,n,x", [(7 * i, *row[:3]) for i, row in enumerate(rows)]
    )
    found = table_sources([path]).files["table.json"]["roles"]
    assert found[""]["why"] == "a value per row under no name, as pandas writes its row numbers"
    assert [one["role"] for one in found.values()] == ["id-like", "id-like", "numeric"]


def test_a_dataset_keeps_its_preparation_and_replays_it(tmp_path):
    raw = hospitals(tmp_path / "raw")
    card, report = add("heart", raw, table={"label": "num", "statistics": "site"})
    assert report["left_out"] == []
    assert (card.domains, card.class_names, card.form) == (tuple("abcd"), ("0", "1"), "7 vectors")
    folder = store_of(card, Variant())
    record = json.loads((folder / "preparation.json").read_text())
    assert record["statistics"] == "site"
    assert not any("sum" in what for what in record["leaves"])
    columns = read_table(raw / "b.csv", TableSchema()).columns
    stored = load("heart")["b"].x.numpy()
    assert (preparation_of(record, "b").apply(columns) == stored).all()
    again = load_card(card_of("heart"), Variant(size=3))  # prepared once more, from the same card
    assert (again["b"].x.numpy() == stored).all()
    found = inspection.inspect("heart", folder)
    lines = inspection.column_lines(found)
    assert lines[0] == "target: num (classification)"
    assert "statistics: site" in lines
    assert any(line.startswith("column chol: numeric (numbers, ") for line in lines)
    assert "column chol" in inspection.page(found, "")


def test_a_new_site_is_prepared_as_the_federation_was(tmp_path):
    raw = hospitals(tmp_path / "raw")
    card, _ = add("joined", raw, table={"label": "num", "drop": "ward"})
    record = read_record(store_of(card, Variant()) / "preparation.json")
    again = replay(record, raw / "b.csv", "later").domain
    assert again.x.equal(load("joined")["b"].x)
    assert again.y.equal(load("joined")["b"].y)
    assert again.classes == ("0", "1")
    assert (again.split == 2).sum() == 10
    new = (raw / "b.csv").read_text().replace(",0\n", ",No\n")
    (tmp_path / "new.csv").write_text(new)
    assert replay(record, tmp_path / "new.csv", "later").domain.y.equal(again.y)
    (tmp_path / "new.csv").write_text(new.replace(",No\n", ",maybe\n"))
    with pytest.raises(DataError, match="the label 'maybe' is not one of 0, 1"):
        replay(record, tmp_path / "new.csv", "later")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"bad.json is no preparation .*; take preparation.json of"):
        read_record(tmp_path / "bad.json")


def test_a_new_site_fits_its_own_statistics_where_all_do(tmp_path):
    write(
        tmp_path / "a.csv",
        "label,x,split",
        [(i % 2, i, "train") for i in range(8)] + [(0, 3, "test")],
    )
    rows = [(0, 10, "train"), (1, 30, "train"), (1, 90, "test")]
    write(tmp_path / "b.csv", "label,x,split", rows)
    card, _ = add("mine", tmp_path / "a.csv", table={"statistics": "site"})
    record = read_record(store_of(card, Variant()) / "preparation.json")
    domain = replay(record, tmp_path / "b.csv", "b").domain
    assert domain.x.flatten().tolist() == [-1, 1, 7]  # mean 20, deviation 10
    assert domain.split.tolist() == [0, 0, 2]


def test_numbers_and_labels_are_replayed_too(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{v:.3f}", i % 2, i // 2 % 2, v * v) for i, v in enumerate(rng.normal(size=40))]
    path = write(tmp_path / "t.csv", "y,p,q,x", rows)
    for name, told in (("n", {"label": "y", "drop": "p,q"}), ("l", {"label": "p,q", "drop": "y"})):
        card, _ = add(name, path, table=told)
        record = read_record(store_of(card, Variant()) / "preparation.json")
        found = replay(record, path, "t").domain
        assert found.objective == load(name)["t"].objective != "classification"
        assert found.y.equal(load(name)["t"].y)


def test_published_vectors_are_taken_as_they_are(tmp_path):
    rows = [
        (i % 2, d, i, 7, i / 4)
        for d in ("books", "dvd", "electronics", "kitchen")
        for i in range(8)
    ]
    write(tmp_path / "v.csv", "label,domain,a,b,c", rows)
    found = find(CATALOGUE["amazon-review"], Variant(form="minilm384"), tmp_path)
    books = found.sources[0].read(("negative", "positive"), None).domain
    assert books.x.tolist() == [[i, 7, i / 4] for i in range(8)]
    assert books.y.tolist() == [0, 1] * 4


def test_data_frames_can_be_added(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(hospitals(tmp_path / "raw") / "a.csv", skipinitialspace=True)
    add("one", frame, table={"label": "num"})
    add("two", {"north/1": frame[:30], "south": frame[30:]}, table={"label": "num"})
    assert {name: len(d.y) for name, d in load("two").items()} == {"north/1": 30, "south": 30}
    assert len(load("one")["one"].y) == 60
    with pytest.raises(DataError, match="list is no data; give a path, a DataFrame, or"):
        add("three", [1, 2])


def test_regression_and_multi_label_can_be_stored_and_inspected(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{v:.3f}", i % 2, 1, v * v) for i, v in enumerate(rng.normal(size=40))]
    path = write(tmp_path / "t.csv", "y,p,q,x", rows)
    card, _ = add("number", path, table={"label": "y", "drop": "p,q"})
    found = inspection.inspect("number", store_of(card, Variant()))
    assert found.summary()["objective"] == "regression"
    y = np.array([float(row[0]) for row in rows])
    assert found.numbers()["t"]["std"] == pytest.approx(y.std(), rel=1e-5)
    assert "target at t: mean" in inspection.column_lines(found)[1]
    assert load("number")["t"].y.dtype.is_floating_point
    card, _ = add("labels", path, table={"label": "p,q", "drop": "y"})
    found = inspection.inspect("labels", store_of(card, Variant()))
    assert found.summary()["counts"] == {"t": {"p": 20, "q": 40}}
    inspection.table(found)


def test_a_schema_file_holds_the_same_fields(tmp_path):
    (tmp_path / "s.toml").write_text('label = "num"\ndrop = ["ward"]\nstatistics = "site"\n')
    schema = schema_of({"statistics": "federated"}, tmp_path / "s.toml")
    assert (schema.label, schema.drop, schema.statistics) == (("num",), ("ward",), "federated")
    (tmp_path / "s.toml").write_text("colour = 1\n")
    with pytest.raises(ConfigError, match=r"colour of a table: Extra .*; known: label, domain"):
        schema_of({}, tmp_path / "s.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        schema_of({}, tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="may_drop of a table: Input should be less than"):
        schema_of({"may_drop": 2})


@pytest.mark.parametrize("label", ["label", "cost"])
def test_a_drawn_split_is_not_called_given(label, tmp_path):
    rows = [(i % 2, i * 1.5, i, "test" if i % 4 == 0 else "train") for i in range(60)]
    given = write(tmp_path / "given.csv", "label,cost,a,split", rows)
    drawn = write(tmp_path / "drawn.csv", "label,cost,a", [row[:3] for row in rows])
    assert read(given, label=label)["given"].domain.drawn is False
    assert read(drawn, label=label)["drawn"].domain.drawn is True
