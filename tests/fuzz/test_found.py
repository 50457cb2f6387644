"""What fuzzing found, one readable case each; ``corpus/`` has inputs that nobody would write."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedshift.base import tree
from fedshift.base.errors import ConfigError, DataError, RunError, UnknownNameError
from fedshift.base.files import from_json
from fedshift.base.logs import printable
from fedshift.claims.store import Results
from fedshift.core.message import Update
from fedshift.core.registry import build
from fedshift.data.catalogue import DatasetCard, Variant
from fedshift.data.library.datasets import own_cards
from fedshift.data.library.prepare import read_report, read_store
from fedshift.data.samples import Domain
from fedshift.data.sources.arrays import npz_source
from fedshift.data.sources.discover import find
from fedshift.data.sources.listed import path_column
from fedshift.data.sources.tables.federated import table_sources
from fedshift.data.sources.tables.replay import read_record
from fedshift.data.store import read_card, read_ids, write_domain
from fedshift.deploy import tables
from fedshift.deploy.folders import SitePaths
from fedshift.deploy.policy import describe_policy, read_policy
from fedshift.deploy.sites import Facts
from fedshift.experiment.run import scenario_of
from fedshift.runs.durable_lines import DurableLines
from fedshift.runs.run_file import read_run_file
from fedshift.runs.seal import Seal
from fedshift.transports.flower.envelope import Envelope, from_envelope, to_envelope


def reply(**changes: Any) -> Envelope:
    good = to_envelope([Update("a", "train", 1, {"w": torch.ones(3)})], {})
    return Envelope(json.dumps(json.loads(good.text) | changes), good.blocks)


def test_a_shape_that_holds_a_list_is_not_multiplied():
    """2 ** 31 times a list is a list of 16 GB: 300 bytes of a reply took the server down."""
    with pytest.raises(RunError, match="w has no shape"):
        from_envelope(reply(layouts=[[["w", "float32", [2**31, [[]]]]]]), Update)


@pytest.mark.parametrize("name", [0.5, None, "\ud800"])
def test_names_of_tensors_are_texts(name):
    with pytest.raises(RunError, match="not an envelope of fedshift"):
        from_envelope(reply(layouts=[[[name, "float32", [3]]]]), Update)


@pytest.mark.parametrize("dtype", ["int6", "quint8", "nn", "", ["float32"]])
def test_numbers_that_torch_has_and_cannot_copy_are_refused(dtype):
    with pytest.raises(RunError, match="not an envelope of fedshift"):
        from_envelope(reply(layouts=[[["w", dtype, [3]]]]), Update)


def test_a_message_without_its_fields_is_one_line():
    with pytest.raises(RunError, match="not a message of fedshift"):
        Update.from_bytes(tree.to_bytes({}, {"client": "a"}))


def test_half_a_surrogate_pair_is_shown_as_its_code():
    assert printable("a\ud800b").encode() == b"a\\ud800b"
    assert from_json(b'{"\\uD800": ["x\\udfff"]}') == {"\\ud800": ["x\\udfff"]}
    assert from_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    "change",
    [
        {"lines": {"/dev/zero": (10**12, "")}},
        {"lines": {"metrics.jsonl": (-1, "")}},
        {"kept": {"../../..": ""}},
    ],
)
def test_a_seal_names_no_other_files(tmp_path, change):
    seal = Seal(tmp_path, "")
    found = seal.take(1, tmp_path / "pending.json", ())
    seal.require(found, 1, tmp_path / "pending.json")
    with pytest.raises(RunError, match="is damaged"):
        seal.require(found | change, 1, tmp_path / "pending.json")


@pytest.mark.parametrize("size", [10**15, 10**30])
def test_a_seal_of_a_longer_file_takes_no_memory(tmp_path, size):
    """Python makes room for as many bytes as it is told to read, before it reads."""
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n")
    seal = Seal(tmp_path, "")
    found = seal.take(1, tmp_path / "pending.json", ())
    found["lines"]["metrics.jsonl"][0] = size
    with pytest.raises(RunError, match="it was changed, cut or deleted"):
        Seal(tmp_path, "").require(found, 1, tmp_path / "pending.json")


# files of a dataset


@pytest.fixture
def store(tmp_path: Path) -> Path:
    domain = Domain(
        "d", torch.zeros(2, 1), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.uint8), ("a", "b")
    )
    write_domain(tmp_path / "s" / "d", domain, ["one", "two"])
    (tmp_path / "s" / "dataset.json").write_text('{"domains": ["d"], "bytes": 8}')
    return tmp_path / "s"


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "{}", '{"domains": 3, "bytes": 8}', "[" * 9999])
def test_a_damaged_record_of_a_dataset_is_one_line(store, text):
    (store / "dataset.json").write_text(text)
    with pytest.raises(DataError, match="is damaged"):
        read_store(store)


@pytest.mark.parametrize("change", [{"name": 3}, {"classes": 1}, {"sha256": []}, {"stamp": 4}])
def test_a_damaged_record_of_a_domain_is_one_line(store, change):
    file = store / "d" / "domain.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match="no record of a domain"):
        read_card(store / "d")


def test_damaged_ids_and_reports_are_one_line(store):
    (store / "d" / "ids.npy").write_bytes(b"\x93NUMPY\x01\x00\x08\x00{'descr'")
    with pytest.raises(DataError, match=r"ids.npy is damaged"):
        read_ids(store / "d")
    np.save(store / "d" / "ids.npy", np.array([b"\xff\xfe"]))
    with pytest.raises(DataError, match=r"ids.npy is damaged"):
        read_ids(store / "d")
    (store / "report.json").write_text('{"left_out": 3}')
    with pytest.raises(DataError, match=r"report.json is damaged"):
        read_report(store)


def test_a_card_of_other_types_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path))
    (tmp_path / "own").mkdir()
    card = {"name": "mine", "summary": "", "domains": ["d"], "classes": 2}
    (tmp_path / "own" / "mine.json").write_text(json.dumps(card))
    (tmp_path / "own" / "odd.json").write_text(json.dumps(card | {"name": [[]]}))
    (tmp_path / "own" / "other.json").write_text(json.dumps(card | {"domains": 7}))
    assert list(own_cards()) == ["mine"]
    assert own_cards()["mine"].domains == ("d",)


# arrays


def packed(**entries: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **entries)
    return file.getvalue()


def npz(tmp_path: Path, blob: bytes) -> Path:
    (tmp_path / "d.npz").write_bytes(blob)
    return tmp_path / "d.npz"


def read_npz(path: Path) -> Any:
    source = npz_source(path, "d")
    return source.read(source.classes, None)


def test_labels_of_eight_bits_need_no_class_names(tmp_path):
    blob = packed(x=np.zeros((4, 2), np.float32), y=np.array([0, 1, 0, 1], np.uint8))
    assert read_npz(npz(tmp_path, blob)).domain.classes == ("0", "1")


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2"])
def test_numbers_in_another_order_of_bytes_are_read(tmp_path, dtype):
    x, y = np.array([[1, 2], [3, 4]], dtype), np.array([0, 1], ">i4")
    blob = packed(x=x, y=y, classes=np.array(["a", "b"], ">U1"))
    domain = read_npz(npz(tmp_path, blob)).domain
    assert domain.x.tolist() == [[1, 2], [3, 4]]
    assert (domain.y.tolist(), domain.classes) == ([0, 1], ("a", "b"))


def test_a_label_that_would_need_a_trillion_names_is_refused(tmp_path):
    blob = packed(x=np.zeros((2, 2), np.float32), y=np.array([0, 2**40]))
    with pytest.raises(DataError, match="the label 1099511627776"):
        read_npz(npz(tmp_path, blob))


def sparse(**changes: Any) -> bytes:
    parts = {"data": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2])}
    return packed(**(parts | {"shape": np.array([2, 2]), "y": np.array([0, 1])} | changes))


@pytest.mark.parametrize(
    "change",
    [
        {"indices": np.array([0, 10**6])},  # would be written outside the array
        {"indptr": np.array([0, 9, 2])},
        {"shape": np.array([2.5, 2.5])},
        {"shape": np.array([2])},
    ],
)
def test_a_sparse_matrix_that_is_none_is_refused(tmp_path, change):
    assert read_npz(npz(tmp_path, sparse())).domain.x.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(DataError, match="is no CSR matrix"):
        read_npz(npz(tmp_path, sparse(**change)))


def test_a_sparse_matrix_that_is_huge_when_dense_is_refused(tmp_path):
    with pytest.raises(DataError, match="as a dense array would take about"):
        read_npz(npz(tmp_path, sparse(shape=np.array([2, 2**31 - 1]))))


@pytest.mark.parametrize("split", [np.array([0.0, 1.0]), np.array(0), np.array([0, 7])])
def test_splits_of_another_kind_are_named(tmp_path, split):
    blob = packed(x=np.zeros((2, 2), np.float32), y=np.array([0, 1]), split=split)
    with pytest.raises(DataError, match="split holds"):
        read_npz(npz(tmp_path, blob))


def header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    head = io.BytesIO()
    described = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()


def with_header(shape: tuple[int, ...], **more: bytes) -> bytes:
    """An npz whose x has this shape in its header and no data."""
    y, out = io.BytesIO(), io.BytesIO()
    np.save(y, np.array([0, 1]))
    with zipfile.ZipFile(out, "w") as file:
        for name, content in ({"x": header(shape), "y": y.getvalue()} | more).items():
            file.writestr(f"{name}.npy", content)
    return out.getvalue()


@pytest.mark.parametrize(
    "blob",
    [
        with_header((2**50,)),
        with_header((2**62, 2**62)),
        with_header((2**70,)),
        with_header((2,), y=b"no array"),
    ],
    ids=["8 PB", "overflow", "no C long", "no array"],
)
def test_headers_that_lie_are_one_line(tmp_path, blob):
    with pytest.raises(DataError, match="cannot be read"):
        read_npz(npz(tmp_path, blob))


def test_names_of_no_bytes_are_refused(tmp_path):
    """2 ** 62 empty names fit into a header, and as names of classes into no memory."""
    blob = with_header((2,), classes=header((2**62,), "<U0"))
    with pytest.raises(DataError, match="classes has 4611686018427387904 items of no bytes"):
        read_npz(npz(tmp_path, blob))


def test_characters_that_do_not_exist_are_refused(tmp_path):
    names = np.array(["a", "b"])
    names.view(np.uint32)[0] = 0x7FFFFFFF
    with pytest.raises(DataError, match="characters that do not exist"):
        read_npz(npz(tmp_path, packed(x=np.zeros((2, 2)), y=np.array([0, 1]), classes=names)))


def test_a_small_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path):
    path = npz(tmp_path, with_header((2,)))
    with zipfile.ZipFile(path, "a") as file:
        file.filelist[0].file_size = 10**11  # as the directory at the end will say
        file.writestr("z", b"")
    with pytest.raises(DataError, match="would take 100 GB"):
        read_npz(path)


# tables


def test_a_number_whose_square_is_none_is_refused_with_its_column(tmp_path):
    rows = ["a,b,label", *(f"{i},{i % 3},{i % 2}" for i in range(20)), f"1{'0' * 200},1,0"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"column 'a' holds 1e\+200, too large"):
        table_sources([tmp_path / "rows.csv"])
    (tmp_path / "rows.csv").write_text("\n".join(rows).replace("0" * 200, "0" * 100))
    (source,) = table_sources([tmp_path / "rows.csv"]).sources
    assert np.isfinite(np.asarray(source.read(source.classes, None).domain.x)).all()


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "utf-8-sig"])
def test_a_table_of_another_encoding_is_added(tmp_path, encoding):
    """It was read, and refused by the question whether it lists images."""
    rows = "".join(f"{i};{'grün' if i % 2 else 'rot'}\n" for i in range(8))
    path = tmp_path / "rows.csv"
    path.write_bytes(f"größe;label\n{rows}".encode(encoding))
    assert path_column(path) is None
    card = DatasetCard("mine", "own", (), 0, origin=str(path))
    (source,) = find(card, Variant(), path).sources
    assert source.classes == ("grün", "rot")


# settings


def run_file(tmp_path: Path, text: str) -> Any:
    (tmp_path / "experiment.toml").write_text(f'method = "fedavg"\n{text}')
    return scenario_of(read_run_file(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "[scenario]\nname = 3",
        "[scenario]\nname = { a = 1 }",
        "[scenario]\npartition = 3",
        "[scenario]\npartition = { kind = [1] }",
        "[scenario]\nname = 'digits'\nbackbone_options = -1",
        "[scenario]\nname = 'digits'\ndata_options = [1]",
        "x = " + "[" * 9999 + "]" * 9999,
        "[settings]\nmu = { a = 1 }",
        "[settings]\nmu = [1]",
    ],
)
def test_values_of_another_kind_in_a_run_file_are_one_line(tmp_path, text):
    with pytest.raises((ConfigError, UnknownNameError)):
        run_file(tmp_path, text)


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}])
def test_a_setting_with_a_range_takes_a_number(value):
    with pytest.raises(ConfigError, match="mu"):
        build("fedprox", mu=value)
    assert build("fedprox", mu=1).parts[0].mu == 1


def test_settings_that_are_no_text_are_one_line(tmp_path):
    (tmp_path / "policy.toml").write_bytes(b"epsilon = 1\n# \xff")
    with pytest.raises(ConfigError, match=r"policy.toml cannot be read"):
        read_policy(SitePaths(tmp_path))


@pytest.mark.parametrize("noise", [-1, float("nan"), 10**400, float("inf"), True, "2"])
def test_noise_that_nobody_added_damages_the_log_of_requests(tmp_path, noise):
    (tmp_path / "policy.toml").write_text("epsilon = 1.0")
    DurableLines(tmp_path / "requests.jsonl").append({"noise": noise})
    with pytest.raises(RunError, match="damaged line"):
        describe_policy(SitePaths(tmp_path))


@pytest.mark.parametrize("section", Update.SECTIONS)
def test_a_section_of_tensors_cannot_come_as_a_scalar(section):
    scalars = {"client": "a", "task": "train", "round": 1, section: "text"}
    text = json.dumps({"messages": [{"scalars": scalars, "sections": {}}], "layouts": []})
    with pytest.raises(RunError, match=f"{section} is among the scalars"):
        from_envelope(Envelope(text, {}), Update)


DEEP = "[" * 5000 + "]" * 5000


def test_lists_that_are_too_deep_are_one_line_wherever_json_is_read(tmp_path):
    (tmp_path / "requests.jsonl").write_text(f"{DEEP}\n")
    with pytest.raises(RunError, match="damaged line"):
        DurableLines(tmp_path / "requests.jsonl").read()
    with pytest.raises(RunError, match="facts that cannot be read"):
        Facts.from_json(DEEP)
    with pytest.raises(RunError, match="site a described its table"):
        tables._read("a", DEEP)
    (tmp_path / "preparation.json").write_text(DEEP)
    with pytest.raises(DataError, match="is no preparation"):
        read_record(tmp_path / "preparation.json")
    (tmp_path / "claims.jsonl").write_text(f"{DEEP}\n")
    assert Results.open(tmp_path / "claims.jsonl").rows == {}


@pytest.mark.parametrize("shape", [(4, 0, 2**32 - 1, 3), (4, 0, 8, 3), (4, 8, 8, 0), (4, 0)])
def test_images_without_pixels_are_refused_before_anything_resizes_them(tmp_path, shape):
    """Pillow crashed the process on sides of 2^31."""
    np.savez(tmp_path / "a.npz", x=np.empty(shape, np.uint8), y=np.arange(4) % 2)
    source = npz_source(tmp_path / "a.npz", "a")
    with pytest.raises(DataError, match=r"a\.npz: x "):
        source.read(source.classes, 16)


def test_ids_that_are_texts_and_not_bytes_are_one_line(store):
    np.save(store / "ids.npy", np.array(["a"]))
    with pytest.raises(DataError, match=r"ids\.npy is damaged"):
        read_ids(store)
