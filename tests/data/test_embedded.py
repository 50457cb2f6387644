from __future__ import annotations

import torch

from fedshift.data.library import embedded
from fedshift.data.library.digits import DOMAINS


def test_digits_are_cached_and_a_damaged_cache_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path))
    first = embedded.embedded_digits()
    assert list(first) == list(DOMAINS)
    monkeypatch.setattr(embedded, "render", lambda: (_ for _ in ()).throw(AssertionError("again")))
    second = embedded.embedded_digits()
    assert all(torch.equal(first[d].x, second[d].x) for d in DOMAINS)
    monkeypatch.undo()
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path))
    (file,) = tmp_path.glob("digits/*/photo/x.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\0\0")
    third = embedded.embedded_digits()
    assert torch.equal(first["photo"].x, third["photo"].x)
    assert torch.equal(embedded.embedded_digits()["photo"].x, first["photo"].x)


def test_a_home_that_cannot_be_written_is_a_note_not_an_end(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "file"))
    assert list(embedded.embedded_digits()) == list(DOMAINS)
    assert "digits are not cached" in caplog.messages[0]
