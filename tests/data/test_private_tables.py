"""Statistics of tables that leave a site with noise: how much, for what, and what never leaves."""

from __future__ import annotations

import json
import math
import random
from functools import partial

import numpy as np
import pytest

import fedshift
from fedshift.base.discrete_laplace import discrete_laplace
from fedshift.base.errors import ConfigError, DataError, UnknownNameError
from fedshift.cli import main
from fedshift.data.catalogue import Variant
from fedshift.data.library.datasets import add
from fedshift.data.library.prepare import store_of
from fedshift.data.sources.tables import agreement, release
from fedshift.data.sources.tables.federated import table_sources
from fedshift.data.sources.tables.preparation import (
    CategoryPlan,
    NumberPlan,
    TablePreparation,
    TextPlan,
)
from fedshift.data.sources.tables.reading import read_table
from fedshift.data.sources.tables.schema import TableSchema, schema_of
from fedshift.data.sources.tables.statistics import NumberStatistics
from fedshift.runs.what_left import require_declared, what_left

HEADER = "age,lab,pain,ill"
TOLD = {
    "label": "ill",
    "bounds": {"age": (-100, 100), "lab": (-3, 3)},
    "categories": {"pain": ("mild", "bad")},
}
MOVED = 1 + 2 + 2 + 1  # rows; two columns of numbers; one of categories
PLANS = TablePreparation((NumberPlan("age"), NumberPlan("lab"), CategoryPlan("pain")))


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))


def rows_of(seed: int, rows: int = 60) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(rows):
        age, lab, pain = rng.normal(50, 9), rng.normal(seed / 2, 1), rng.choice(["mild", "bad"])
        ill = int((age - 50) / 9 + lab > 0.5)
        gap = rng.random() < 0.2
        out.append(["" if gap else f"{age:.1f}", f"{lab:.3f}", str(pain), str(ill)])
    return out


def write(path, rows, header=HEADER):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def columns(rows: int = 50) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    age = rng.normal(50, 9, rows)
    age[::7] = np.nan
    return {
        "age": age,
        "lab": rng.normal(0, 1, rows),
        "pain": rng.choice(np.array(["mild", "bad", "odd", None], dtype=object), rows),
    }


@pytest.fixture
def silent(monkeypatch):
    """Noise of zero: what is left is what noise would be added to."""
    monkeypatch.setattr(release, "discrete_laplace", lambda _scale: 0)


def numbers_of(found) -> np.ndarray:
    """What a site tells, in the units of the noise: counts, sums of u and of u^2."""
    out = [found["age"].rows, found["pain"].missing, *found["pain"].counts.values()]
    for name, half in (("age", 100), ("lab", 3)):  # bounds around zero
        one = found[name]
        out += [one.missing, one.total / half, one.squares / half**2]
    return np.array(out)


# how much noise


def test_noise_is_what_epsilon_and_bounds_say(monkeypatch):
    """The mean absolute deviation of discrete Laplace noise of scale b is 2 q / (1 - q^2)."""
    below = random.Random(1).randrange
    monkeypatch.setattr(release, "discrete_laplace", partial(discrete_laplace, below=below))
    data, epsilon, draws = columns(), 0.5, 1500
    schema = TableSchema(**TOLD, epsilon=epsilon)
    noisy = np.array([numbers_of(release.release(PLANS, data, schema)) for _ in range(draws)])
    u = {"age": data["age"][~np.isnan(data["age"])] / 100, "lab": np.clip(data["lab"] / 3, -1, 1)}
    cells = data["pain"].tolist()
    exact = [50, cells.count(None), cells.count("mild"), cells.count("bad")]
    for name in ("age", "lab"):
        exact += [50 - len(u[name]), u[name].sum(), (u[name] ** 2).sum()]
    scale = MOVED / epsilon
    q = math.exp(-1 / scale)
    found = np.abs(noisy - exact).mean(axis=0)
    for at in range(len(exact)):
        counts = at not in (5, 6, 8, 9)  # sums lie on a fine grid: there it is the scale itself
        assert found[at] == pytest.approx(2 * q / (1 - q * q) if counts else scale, rel=0.13), at
    assert np.abs(noisy.mean(axis=0) - exact).max() < 5 * math.sqrt(2 / draws) * scale
    assert np.abs(np.corrcoef(noisy.T) - np.eye(len(exact))).max() < 5 / math.sqrt(draws)


def test_one_row_moves_the_answer_by_no_more_than_is_assumed(silent):
    """Whatever the row holds; some row moves it by all of that."""
    schema = TableSchema(**TOLD, epsilon=1)
    odd = [np.nan, 100.0, -100.0, 99.5, 1e300, -1e300, 0.0]
    data = {
        "age": np.array(odd),
        "lab": np.array([3.0, -3.0, 2.9999, np.nan, -1e300, 1e300, 1e-300]),
        "pain": np.array(["mild", "bad", None, "odd", "mild", "bad", None], dtype=object),
    }
    whole, moves = numbers_of(release.release(PLANS, data, schema)), []
    for i in range(len(odd)):
        less = {name: np.delete(column, i) for name, column in data.items()}
        moves.append(np.abs(whole - numbers_of(release.release(PLANS, less, schema))).sum())
    assert max(moves) == pytest.approx(MOVED) == release.moved(PLANS)
    assert max(moves) <= MOVED + 1e-9
    assert release.moved(TablePreparation((*PLANS.plans, TextPlan("notes")))) == MOVED


@pytest.mark.parametrize(
    "row",
    [
        ["900", "0", "mild", "0"],
        ["none of it", "1,5", "Schmerzen", "1"],
        ["007", "-9.0", "béant", "1"],
        ["1_000", "?", "", "0"],
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_row_of_a_file_changes_nothing_of_the_other_rows(row, delimiter, tmp_path, silent):
    """Neither how they are read nor which of them are training rows: one row moves one row."""
    mark = "," if delimiter == ";" else "."
    others = [[cell.replace(".", mark) for cell in one] for one in rows_of(1)]
    others[3][1] = f"-9{mark}0"
    if delimiter == ",":
        row = [cell.replace(",", ".") for cell in row]
    lines = []
    for name, rows in (("with", [*others[:9], row, *others[9:]]), ("without", others)):
        text = "\n".join(delimiter.join(one) for one in [HEADER.split(","), *rows])
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text(text + "\n", encoding="utf-8")
        schema = TableSchema(**TOLD, epsilon=1, missing=("-9",))
        found = table_sources([tmp_path / name / "a.csv"], schema)
        read = found.sources[0].read(("0", "1"), None).domain
        split = read.split.tolist()
        lines.append([split[:9] + split[10:] if name == "with" else split, found.files])
    assert lines[0][0] == lines[1][0]
    told = []
    for name in ("with", "without"):
        table = read_table(tmp_path / name / "a.csv", schema)
        own = {n: table.columns[n] for n in ("age", "lab", "pain")}
        told.append(numbers_of(release.release(PLANS, own, schema)))
    assert np.abs(told[0] - told[1]).sum() <= MOVED + 1e-9
    assert {0, 2} <= set(lines[0][0])
    assert own["lab"].dtype == float
    assert np.isnan(own["lab"][3])  # -9 is told as missing


def test_without_noise_a_drawn_split_would_move_many_rows(tmp_path):
    """Why the split is decided row by row: a draw over all rows depends on how many there are."""
    splits = []
    for name, rows in (("with", [["50", "1", "bad", "1"], *rows_of(1)]), ("without", rows_of(1))):
        found = table_sources([write(tmp_path / name / "a.csv", rows)], TableSchema(label="ill"))
        splits.append(found.sources[0].read(("0", "1"), None).domain.split.tolist()[-60:])
    assert sum(a != b for a, b in zip(*splits, strict=True)) > 3


# what becomes of it


def sites(root, given: bool = True):
    for seed, name in enumerate(("berlin", "paris"), start=1):
        rows = rows_of(seed)
        marked = [[*row, "test" if i % 5 == 0 else "train"] for i, row in enumerate(rows)]
        write(root / f"{name}.csv", marked if given else rows, HEADER + (",split" if given else ""))
    return sorted(root.glob("*.csv"))


def test_with_a_large_epsilon_the_preparation_is_the_plain_one(tmp_path):
    paths, wide = sites(tmp_path / "raw"), {"age": (0, 120), "lab": (-10, 10)}
    plain = table_sources(paths, TableSchema(label="ill", impute="mean"))
    noisy = table_sources(paths, TableSchema(**TOLD | {"bounds": wide}, epsilon=1e9))
    for one, other in zip(plain.sources, noisy.sources, strict=True):
        a, b = (source.read(("0", "1"), None).domain for source in (one, other))
        assert a.split.equal(b.split)
        np.testing.assert_allclose(a.x.numpy(), b.x.numpy(), atol=1e-5)


def test_spoilt_statistics_stay_within_the_bounds():
    uniform = 10 / math.sqrt(3)  # deviation of values spread evenly from 0 to 20
    assert NumberStatistics(5, 9, 1.0, 1.0).within((0, 20)) == (10, pytest.approx(uniform))
    assert NumberStatistics(-5, -4, 1.0, 1.0).within((0, 20)) == (10, pytest.approx(uniform))
    mean, scale = NumberStatistics(10, 0, 900.0, 10.0).within((0, 20))
    assert (mean, scale) == (20, pytest.approx(uniform))
    mean, scale = NumberStatistics(10, 0, -900.0, 1e9).within((0, 20))
    assert (mean, scale) == (0, 10)
    # four values 1, 1, 3, 3 and four missing cells: the deviation of the filled column is sqrt(1/2)
    assert NumberStatistics(8, 4, 8.0, 20.0).within((0, 20)) == (2, pytest.approx(math.sqrt(0.5)))


def test_dates_hashed_categories_texts_and_codes(tmp_path, silent):
    rows = [["2020-01-31", f"street {i}", str(i % 3), "some words of text here", str(i % 2)]
            for i in range(30)]  # fmt: skip
    path = write(tmp_path / "raw" / "a.csv", rows, "seen,street,code,notes,ill")
    schema = schema_of({
        "label": "ill", "epsilon": 1, "date": "seen", "categorical": "street", "text": "notes",
        "bounds": "seen=2020-01-01:2020-12-31", "categories": {"code": [0, 1.0, "2"]},
    })  # fmt: skip
    found = table_sources([path], schema)
    seen, street, code, notes = found.files["preparation.json"]["all"]["plans"]
    assert seen["mean"] == pytest.approx(18292, abs=1e-6)  # the day of 2020-01-31
    assert seen["scale"] == pytest.approx(365 / 2 / math.sqrt(3))  # no variance: as of the bounds
    assert (street["size"], street["categories"], street["fill"]) == (32, (), "")
    assert code["categories"] == ("0", "1.0", "2")
    assert notes["kind"] == "text"
    x = found.sources[0].read(("0", "1"), None).domain.x
    assert x[:, 33:36].sum(0).tolist() == [10, 10, 10]
    assert x.shape[1] == 1 + 32 + 3 + 1024


def test_parquet_and_excel_are_read_cell_by_cell_too(tmp_path):
    pyarrow, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    openpyxl = pytest.importorskip("openpyxl")
    cells = {"age": ["1.0", "odd", "-9.0"], "pain": ["1.0", "bad", None], "ill": [0, 1, 1]}
    pq.write_table(pyarrow.table(cells), tmp_path / "a.parquet")
    book = openpyxl.Workbook()
    for row in zip(*([name, *column] for name, column in cells.items()), strict=True):
        book.worksheets[0].append(row)
    book.save(tmp_path / "a.xlsx")
    schema = TableSchema(**TOLD | {"label": "ill"}, epsilon=1, missing=("-9",))
    for name in ("a.parquet", "a.xlsx"):
        table = read_table(tmp_path / name, schema)
        np.testing.assert_array_equal(table.columns["age"], [1.0, np.nan, np.nan])
        assert table.columns["pain"].tolist() == ["1.0", "bad", None]
        assert table.columns["ill"].tolist() == [0, 1, 1]


# what is refused


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ({"epsilon": 0}, ConfigError, "epsilon of a table: Input should be greater than 0"),
        ({"epsilon": -1}, ConfigError, "epsilon of a table: Input should be greater than 0"),
        ({"epsilon": "nan"}, ConfigError, "epsilon of a table: Input should be"),
        ({"epsilon": 1, "impute": "median"}, ConfigError, "epsilon is for statistics=federated"),
        ({"epsilon": 1, "statistics": "site"}, ConfigError, "epsilon is for statistics=federated"),
        ({"bounds": "age=0:1"}, ConfigError, "bounds and categories belong to epsilon"),
        ({"epsilon": 1, "bounds": "age=2:1"}, ConfigError, "bounds of age are 2 and 1"),
        ({"epsilon": 1, "bounds": "age"}, ConfigError, "'age' is not COLUMN=A:B"),
        ({"epsilon": 1, "bounds": "age=x:1"}, ConfigError, "should be a valid number"),
        ({"epsilon": 1, "bounds": "a=0:1", "categories": "a=x"}, ConfigError, "has bounds and"),
        ({"epsilon": 1, "numeric": "age"}, DataError, "column 'age' has no bounds"),
        ({"epsilon": 1, "bounds": "age=0:99"}, DataError, "column 'lab' has no role, and under"),
        ({"epsilon": 1, "bounds": "size=0:99"}, UnknownNameError, "size"),
    ],
)  # fmt: skip
def test_what_has_no_sound_answer_is_refused_by_name(told, error, words, tmp_path):
    paths = sites(tmp_path / "raw")
    with pytest.raises(error, match=words) as caught:
        table_sources(paths, schema_of({"label": "ill"} | told))
    if "no bounds" in words:
        assert caught.value.options == ("bounds=age=LOW:HIGH", "drop=age")


def test_a_split_without_test_rows_is_not_completed(tmp_path):
    rows = [[*row, "train"] for row in rows_of(1)]
    path = write(tmp_path / "a.csv", rows, HEADER + ",split")
    with pytest.raises(DataError, match="marks no test rows, and under epsilon none are drawn"):
        table_sources([path], TableSchema(**TOLD, epsilon=1))


def test_release_needs_an_epsilon():
    with pytest.raises(ValueError, match="released under an epsilon"):
        release.release(PLANS, columns(), TableSchema(label="ill"))


def test_the_command_line_refuses_and_names_its_options(tmp_path, capsys):
    sites(tmp_path / "raw")
    typed = ["data", "add", "ill", str(tmp_path / "raw"), "--label", "ill"]
    for more, words in (
        (["--epsilon", "0"], "greater than 0"),
        (["--epsilon", "1", "--bounds", "age=0:120", "--categories", "pain=mild:bad"],
         "--bounds lab=LOW:HIGH"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main([*typed, *more])
        assert stop.value.code == 2
        told = capsys.readouterr().err.strip()
        assert words in told
        assert len(told.splitlines()) == 1


# what leaves, and what is kept


def leaves_of(found: object) -> list[float]:
    """Every number in something that was read from JSON."""
    if isinstance(found, dict):
        return [n for value in found.values() for n in leaves_of(value)]
    if isinstance(found, list | tuple):
        return [n for value in found for n in leaves_of(value)]
    return [float(found)] if isinstance(found, int | float) else []


def exact_statistics(path) -> dict[str, float]:
    """Of training rows, by an independent reading: sums, squares, means, deviations, medians."""
    lines = [line.split(",") for line in path.read_text().splitlines()[1:]]
    out = {}
    for at, name in ((0, "age"), (1, "lab")):
        x = np.array([float(r[at]) for r in lines if r[4] == "train" and r[at]])
        found = {"sum": x.sum(), "squares": (x**2).sum(), "mean": x.mean(), "median": np.median(x)}
        out |= {f"{name} {what}": float(value) for what, value in found.items()}
    return out


def found_in(numbers: list[float], exact: dict[str, float]) -> set[str]:
    at = np.array(numbers)
    return {name for name, value in exact.items() if np.isclose(at, value, rtol=1e-9).any()}


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_no_exact_statistic_is_told_or_kept(epsilon, tmp_path):
    """One site, so that what is stored with a model is its own; without noise all of it is found.

    The attacker knows every row but one value, and subtracts what it knows from what it is told.
    """
    paths = sites(tmp_path / "raw")
    paths[1].unlink()
    path = paths[0]
    table = TOLD | {"epsilon": epsilon} if epsilon else {"label": "ill", "impute": "mean"}
    card, _ = add("ill", tmp_path / "raw", table=table)
    scenario = {"scenario": "ill", "rounds": 1, "out": tmp_path / "run", "quiet": True}
    fedshift.run("fedavg", backbone="linear", **scenario)
    kept = [*store_of(card, Variant()).rglob("*.json"), *(tmp_path / "run").rglob("*.json*")]
    numbers = []
    for file in kept:
        for line in (
            file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        ):
            numbers += leaves_of(json.loads(line))
    assert {"preparation.json", "table.json", "ledger.jsonl"} <= {file.name for file in kept}
    exact = exact_statistics(path)
    means = {name: value for name, value in exact.items() if name.endswith("mean")}
    assert found_in(numbers, means) == (set() if epsilon else set(means))
    # what the site told
    schema = schema_of(table)
    data = {
        k: v for k, v in read_table(path, schema).columns.items() if k in ("age", "lab", "pain")
    }
    train = {name: column[np.arange(60) % 5 != 0] for name, column in data.items()}
    own = release.release(PLANS, train, schema) if epsilon else PLANS.count(train)
    told = json.loads(agreement.packed(agreement.tell(own, schema)))
    assert found_in(leaves_of(told), {k: v for k, v in exact.items() if "s" in k.split()[1]}) == (
        set() if epsilon else {"age sum", "age squares", "lab sum", "lab squares"}
    )
    known = train["lab"][1:].sum()
    guess = told["lab"]["total"] - known
    assert (abs(guess - train["lab"][0]) < 1e-9) == (epsilon is None)


def test_ledger_inspection_and_record_say_how_much_noise_there_was(tmp_path, capsys):
    sites(tmp_path / "raw", given=False)
    typed = ["data", "add", "ill", str(tmp_path / "raw"), "--label", "ill", "--epsilon", "2"]
    typed += ["--bounds", "age=0:120", "--bounds", "lab=-5:5", "--categories", "pain=mild:bad"]
    with pytest.raises(SystemExit) as stop:
        main(typed)
    assert not stop.value.code, capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "inspect", "ill"])
    assert "statistics: federated, with noise: epsilon 2 for one row of a site" in (
        capsys.readouterr().out
    )
    result = fedshift.run("fedavg", "ill", backbone="linear", rounds=2, out=tmp_path / "run",
                          quiet=True)  # fmt: skip
    assert len(result.history) >= 1
    left = [one for one in what_left(tmp_path / "run") if one.kind == "preparation"]
    assert {one.client for one in left} == {"berlin-0", "paris-0"}
    assert all(one.round == 0 and "with noise (discrete Laplace, epsilon 2" in one.declared
               for one in left)  # fmt: skip
    require_declared(what_left(tmp_path / "run"))
    record = json.loads((tmp_path / "run" / "preparation.json").read_text())["table"]
    assert record["schema"]["epsilon"] == 2
    assert record["schema"]["impute"] == "mean"
    model = fedshift.load_model(tmp_path / "run", "berlin-0")
    assert len(model.predict(tmp_path / "raw" / "berlin.csv")) == 60


def test_the_split_takes_about_a_fifth_and_keeps_equal_rows_together(tmp_path):
    rows = rows_of(1, 400)
    path = write(tmp_path / "a.csv", [*rows, *rows])
    found = table_sources([path], TableSchema(**TOLD, epsilon=1))
    split = found.sources[0].read(("0", "1"), None).domain.split.numpy()
    assert (split[:400] == split[400:]).all()
    assert abs((split[:400] == 2).mean() - 0.2) < 5 * math.sqrt(0.16 / 400)
