"""Tensors on disk: nothing that was changed afterwards is read, and older files still open."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading

import pytest
import torch

from fedshift.base import files, locks, tree
from fedshift.base.errors import RunError
from fedshift.base.files import write_bytes
from fedshift.base.locks import only_writer
from fedshift.base.tensor_files import read_tensors, write_tensors

ENTRIES = {"w": torch.arange(6.0).view(2, 3), "état": torch.tensor(3), "empty": torch.empty(0, 2)}
META = {"round": 7, "name": 'a "quoted" one'}


@pytest.fixture
def written(tmp_path):
    write_tensors(tmp_path / "a.safetensors", ENTRIES, META)
    return tmp_path / "a.safetensors"


def test_what_is_written_is_read(written):
    entries, meta = read_tensors(written)
    assert list(entries) == list(ENTRIES)
    assert all(torch.equal(entries[k], v) for k, v in ENTRIES.items())
    assert meta == META


def test_every_flipped_bit_is_noticed_header_included(written):
    blob = bytearray(written.read_bytes())
    rng = random.Random(0)
    places = [(i, 1 << rng.randrange(8)) for i in range(len(blob))]
    for place, bit in places:
        changed = blob.copy()
        changed[place] ^= bit
        written.write_bytes(changed)
        with pytest.raises(RunError, match="is damaged: its checksum does not match"):
            read_tensors(written)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 60, -1])
def test_a_file_that_ends_early_is_noticed(written, length):
    blob = written.read_bytes()
    written.write_bytes(blob[:length])
    with pytest.raises(RunError, match="is damaged"):
        read_tensors(written)


def old_format(entries, meta):
    """As versions before wrote them: a checksum of the data alone."""
    blob = tree.to_bytes(entries, meta)
    size = int.from_bytes(blob[:8], "little")
    head, data = json.loads(blob[8 : 8 + size]), blob[8 + size :]
    head["__metadata__"]["sha256"] = hashlib.sha256(data).hexdigest()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def test_files_of_earlier_versions_open(tmp_path):
    (tmp_path / "old").write_bytes(old_format(ENTRIES, META))
    entries, meta = read_tensors(tmp_path / "old")
    assert torch.equal(entries["w"], ENTRIES["w"])
    assert meta == META


def test_a_damaged_header_of_an_earlier_version_is_one_line(tmp_path):
    """Its checksum does not cover the header; what cannot be read is an error, not a KeyError."""
    blob = old_format(ENTRIES, META)
    size = int.from_bytes(blob[:8], "little")
    for place in range(8 + size):
        changed = bytearray(blob)
        changed[place] ^= 4
        (tmp_path / "old").write_bytes(changed)
        try:
            read_tensors(tmp_path / "old")
        except RunError:
            continue


@pytest.mark.parametrize(
    "head",
    [
        {"order": 3, "meta": {}},
        {"order": ["w", "w"], "meta": {}},
        {"order": [["w"]], "meta": {}},
        {"order": ["w"], "meta": 5},
        {"order": ["other"], "meta": {}},
        [],
        "[" * 100_000,
    ],
)
def test_bytes_with_an_odd_header_are_one_line(head):
    import safetensors.torch

    text = head if isinstance(head, str) else json.dumps(head)
    blob = safetensors.torch.save({"w": torch.zeros(2)}, metadata={"fedshift": text})
    with pytest.raises(RunError, match="not a fedshift tensor file, or a damaged one"):
        tree.from_bytes(blob)


def test_a_shape_that_overflows_takes_no_memory():
    size = 2**62
    head = {
        "__metadata__": {"fedshift": json.dumps({"order": ["w"], "meta": {}})},
        "w": {"dtype": "F32", "shape": [0, size, size], "data_offsets": [0, 0]},
    }
    text = json.dumps(head).encode()
    with pytest.raises(RunError):
        tree.from_bytes(len(text).to_bytes(8, "little") + text)


def test_a_link_to_a_locked_folder_is_locked_too(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with (
        only_writer(tmp_path / "run"),
        pytest.raises(RunError, match="another process is writing"),
        only_writer(tmp_path / "link"),
    ):
        pass
    with only_writer(tmp_path / "link"):
        pass


def test_a_lock_file_that_its_owner_deletes_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """We open the file, its owner ends and deletes it, a third process makes a new one."""
    lock, flock = tmp_path / ".run.lock", locks.fcntl.flock
    calls = []

    def slow(file, mode):
        if not calls:
            calls.append(1)
            lock.unlink()  # by the owner, between our open and our lock
        flock(file, mode)

    monkeypatch.setattr(locks.fcntl, "flock", slow)
    with only_writer(tmp_path / "run"):
        with (
            pytest.raises(RunError, match="another process is writing"),
            only_writer(tmp_path / "run"),
        ):
            pass
        assert lock.exists()
    assert not lock.exists()


def test_two_of_many_never_write_at_once(tmp_path):
    inside, most, taken = [], [0], [0]

    def work():
        for _ in range(40):
            try:
                with only_writer(tmp_path / "run"):
                    inside.append(1)
                    most[0], taken[0] = max(most[0], len(inside)), taken[0] + 1
                    inside.pop()
            except RunError:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert most[0] == 1
    assert taken[0] > 1


def test_a_durable_write_syncs_data_before_the_name_and_the_name_before_it_returns(
    tmp_path, monkeypatch
):
    events = []
    fsync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(files, "settle", lambda folder: events.append("data"))
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("folder"), fsync(fd)))
    monkeypatch.setattr(
        type(tmp_path), "replace", lambda a, b: (events.append("name"), replace(a, b))
    )
    write_bytes(tmp_path / "a", b"x", durable=True)
    assert events == ["data", "name", "folder"]
    write_bytes(tmp_path / "new" / "a", b"x", durable=True)
    assert events[3:] == ["data", "name", "folder", "folder"]  # and the folder that holds the new
    write_bytes(tmp_path / "b", b"x")
    assert events[7:] == ["name"]


def test_settling_reaches_the_disk_or_says_why(tmp_path):
    files.settle(tmp_path)
    none = tmp_path / "none"
    with pytest.raises(RunError, match="does not exist"), files.readable_errors(none):
        files.settle(none)
