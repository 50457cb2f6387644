"""Files of tables: any delimiter, decimal comma and encoding give the same columns."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.base.errors import DataError
from fedshift.data.sources.tables import cells
from fedshift.data.sources.tables.preparation import as_numbers
from fedshift.data.sources.tables.reading import read_table
from fedshift.data.sources.tables.schema import TableSchema

PLAIN = "città,x,y\nA,1.5,1\nB,2.25,?\n"
GERMAN = "città;x;y\nA;1,5;1\nB;2,25;\n"


def columns(path, **told):
    found = read_table(path, TableSchema(**told)).columns
    return {name: ["-" if v is None or v != v else v for v in col] for name, col in found.items()}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-le"])
@pytest.mark.parametrize(
    "text", [PLAIN, GERMAN, PLAIN.replace(",", "\t"), GERMAN.replace(";", "|")]
)
def test_delimiter_decimal_comma_and_encoding_are_found(text, encoding, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    assert columns(tmp_path / "t.csv") == {"città": ["A", "B"], "x": [1.5, 2.25], "y": [1.0, "-"]}


MIXED = "dose;kind;y\n1,5;3,5 mg;1,2\n1.200,25;1,5,3;2\n-,5;2,0;1\nunknown;x,y;3\n"


def test_one_cell_that_is_no_number_hides_no_decimal_comma(tmp_path):
    (tmp_path / "t.csv").write_text(MIXED)
    found = columns(tmp_path / "t.csv", label="y", objective="multi-label")
    assert found["dose"] == ["1.5", "1200.25", "-.5", "unknown"]
    assert found["kind"] == ["3,5 mg", "1,5,3", "2.0", "x,y"]
    read = read_table(tmp_path / "t.csv", TableSchema(label="y", objective="multi-label"))
    np.testing.assert_equal(as_numbers(read.columns["dose"]), [1.5, 1200.25, -0.5, np.nan])


def test_labels_between_commas_stay_as_they_are(tmp_path):
    (tmp_path / "t.csv").write_text("x;y\n1;1,2\n2;a\n")
    assert columns(tmp_path / "t.csv", label="y")["y"] == ["1,2", "a"]


@pytest.mark.parametrize("suffix", ["xlsx", "parquet"])
def test_excel_and_parquet_give_the_same_columns_as_csv(suffix, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"a": [1.5, None, 3], "kind": ["u", None, "?"], "day": pd.to_datetime(["2020-02-01"] * 3)}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    if suffix == "xlsx":
        frame.to_excel(tmp_path / "t.xlsx", index=False)
    else:
        frame.to_parquet(tmp_path / "t.parquet")
    found, plain = columns(tmp_path / f"t.{suffix}"), columns(tmp_path / "t.csv")
    assert [v[:10] for v in found.pop("day")] == plain.pop("day") == ["2020-02-01"] * 3
    assert found == plain == {"a": [1.5, "-", 3.0], "kind": ["u", "-", "-"]}


def test_row_numbers_that_pandas_adds_to_parquet_are_no_column(tmp_path):
    pd = pytest.importorskip("pandas")
    pd.DataFrame({"a": [1.5, 2.5]}, index=[7, 3]).to_parquet(tmp_path / "t.parquet")
    assert columns(tmp_path / "t.parquet") == {"a": [1.5, 2.5]}


def test_a_title_above_the_column_names_is_told(tmp_path):
    (tmp_path / "t.csv").write_text("Export of May\n\na,b\n1,2\n")
    with pytest.raises(DataError, match=r"t\.csv:3 has 2 cells, the header 1; delete lines above"):
        read_table(tmp_path / "t.csv", TableSchema())


def test_cells_of_the_users_own_mean_missing_too(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n-9,x\n1,unknown\n")
    assert columns(tmp_path / "t.csv")["a"] == [-9.0, 1.0]
    told = columns(tmp_path / "t.csv", missing=["-9.0", "Unknown"])
    assert told == {"a": ["-", 1.0], "b": ["x", "-"]}


def test_codes_are_texts_and_marks_of_thousands_are_none(tmp_path):
    (tmp_path / "t.csv").write_text('zip,price,code\n01067,"1,234.5",1_000\n10115,2,2_000\n')
    assert columns(tmp_path / "t.csv") == {
        "zip": ["01067", "10115"], "price": [1234.5, 2.0], "code": ["1_000", "2_000"],
    }  # fmt: skip


def test_a_column_that_turns_out_to_be_text_keeps_its_spelling(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "BLOCK", 2)
    monkeypatch.setattr(cells, "BYTES", 9)
    (tmp_path / "t.csv").write_text("a,b\n1.50,1\n2,?\n3,4\nx,5\n")
    expected = {"a": ["1.50", "2", "3", "x"], "b": [1.0, "-", 4.0, 5.0]}
    assert columns(tmp_path / "t.csv") == expected
    monkeypatch.setattr(cells, "has_arrow", lambda: False)
    assert columns(tmp_path / "t.csv") == expected


CELL = st.one_of(
    st.floats(allow_subnormal=True).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.sampled_from(["", "?", "NA", "nan", " 1", "2 ", "+3", "007", "1_0", "1,5", "x", "é", ".5",
                     "5.", "1e999", "-0", "0", "0x1A", "Infinity", "1d2", "\uff11"]),
)  # fmt: skip


@given(
    st.lists(st.lists(CELL, min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(8, 60),
    st.booleans(),
)
def test_a_csv_reads_the_same_with_and_without_pyarrow(rows, size, windows):
    """Also where lines are too short, and where blocks end in between."""
    end = "\r\n" if windows else "\n"
    text = end.join([";".join("abcd"), *(";".join(row) for row in rows)])
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "t.csv"
        path.write_bytes(text.encode())
        for arrow in (True, False):
            patch.setattr(cells, "BYTES", size if arrow else 2**20)
            patch.setattr(cells, "has_arrow", lambda arrow=arrow: arrow)
            found.append(read_table(path, TableSchema()))
    one, two = found
    assert one.lines.tolist() == two.lines.tolist()
    for name, column in one.columns.items():
        assert column.dtype == two.columns[name].dtype
        assert repr(column.tolist()) == repr(two.columns[name].tolist()), name


def test_codes_and_gaps_of_a_plain_file(tmp_path):
    (tmp_path / "t.csv").write_text("zip,n,m\n01067,0,-\n10115,0.5,NULL\n99999,7,2\n")
    assert columns(tmp_path / "t.csv") == {
        "zip": ["01067", "10115", "99999"], "n": [0.0, 0.5, 7.0], "m": ["-", "-", 2.0],
    }  # fmt: skip


def test_only_plain_files_go_to_pyarrow(tmp_path):
    path = tmp_path / "t.csv"
    for text, expected in (
        (b"a,b\n1,2\n", True), (b"a,b\r\n1,2\r\n", True), (b'a,b\n"1",2\n', False),
        (b"a,b\n\n1,2\n", False), (b"a,b\r\n\r\n1,2", False), (b"a,b\r1,2\r", False),
        (b"a,b\r\n1,2\r", False), (b"a" * (2**20 - 1) + b"\n\n", False),
        (b"a" * (2**20 - 1) + b"\r\n1", True),
    ):  # fmt: skip
        path.write_bytes(text)
        assert cells.is_plain(path) == expected, text[-10:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; expected a header line"),
        ("label,a\n", "has no rows"),
        ("label,a,a\n1,2,3\n", "has a column twice among label, a, a; rename one"),
        ("63,1,145\n37,1,130\n", "starts with 63, 1, 145: no header; add a line of column names"),
        ("a,b\n1,2\n1,2,3\n", "t.csv:3 has 3 cells, the header 2"),
    ],
)
def test_a_csv_that_cannot_be_used_says_why(text, expected, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=expected):
        read_table(tmp_path / "t.csv", TableSchema())


def test_files_that_are_damaged_are_errors(tmp_path):
    for name in ("t.xlsx", "t.parquet"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(DataError, match="cannot be read"):
            read_table(tmp_path / name, TableSchema())


@pytest.mark.parametrize("module", ["openpyxl", "pyarrow.parquet"])
def test_a_missing_library_says_what_to_install(module, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    name = "t.xlsx" if module == "openpyxl" else "t.parquet"
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"pip install 'fedshift\[tables\]'"):
        read_table(tmp_path / name, TableSchema())


def test_short_lines_and_blank_lines_keep_their_line_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n\n3\n4,5,\n")
    table = read_table(tmp_path / "t.csv", TableSchema())
    assert table.lines.tolist() == [2, 4, 5]
    assert table.columns["a"].tolist() == [1, 3, 4]
    assert math.isnan(table.columns["b"][1])
    assert np.isnan(table.columns["b"]).sum() == 1
