"""Texts as vectors: hashed words by scikit-learn's rules, sentence encoders once per text."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from fedshift.base.errors import DataError
from fedshift.data.sources import text
from fedshift.data.sources.tables.federated import table_sources
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.text import encode, hashed_words


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))


def test_hashed_words_are_those_of_scikit_learn_where_words_occur_once():
    texts = ["A good Book", "not a good film, über all", "", "x y"]
    expected = HashingVectorizer(n_features=64, norm="l2").transform(texts).toarray()
    np.testing.assert_allclose(hashed_words(texts, 64), expected, atol=1e-6)


def test_a_word_that_occurs_n_times_counts_one_plus_log_n():
    once, often = (
        hashed_words(["good film"], 4096)[0],
        hashed_words(["good film film film"], 4096)[0],
    )
    film = np.abs(hashed_words(["film"], 4096)[0]).argmax()
    good = np.abs(hashed_words(["good"], 4096)[0]).argmax()
    assert abs(once[film] / once[good]) == pytest.approx(1)
    assert abs(often[film] / often[good]) == pytest.approx(1 + np.log(3))
    assert np.linalg.norm(often) == pytest.approx(1)


def test_blocks_make_no_difference(monkeypatch):
    texts = [f"word{i} same" for i in range(7)]
    whole = hashed_words(texts, 32)
    monkeypatch.setattr(text, "BLOCK", 3)
    assert (hashed_words(texts, 32) == whole).all()


def model(root):
    root.mkdir()
    (root / "config.json").write_text("{}")
    (root / "model.safetensors").write_bytes(b"weights")
    return root


def test_a_text_is_encoded_once_per_encoder(tmp_path, monkeypatch):
    asked: list[list[str]] = []

    def fake(_folder, texts):
        asked.append(list(texts))
        return np.array([[len(t), 1] for t in texts], dtype=np.float32)

    monkeypatch.setattr(text, "_encode", fake)
    folder = model(tmp_path / "model")
    first = encode(["one", "three", "one", None], str(folder), 0)
    assert first.tolist() == [[3, 1], [5, 1], [3, 1], [0, 1]]
    assert encode(["three", "four"], str(folder), 0).tolist() == [[5, 1], [4, 1]]
    assert asked == [["one", "three", ""], ["four"]]
    (folder / "model.safetensors").write_bytes(b"other weights")
    encode(["one"], str(folder), 0)
    assert asked[-1] == ["one"]


def test_an_encoder_that_is_not_there_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="'nothing' is neither words, minilm nor a folder"):
        encode(["a"], "nothing", 8)
    folder = model(tmp_path / "model")
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(DataError, match=r"pip install 'fedshift\[text\]'"):
        encode(["a"], str(folder), 8)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="nothing is unpickled"):
        encode(["a"], str(folder), 8)
    monkeypatch.setitem(__import__("sys").modules, text.PACKAGE, None)
    with pytest.raises(DataError, match="minilm is not installed"):
        encode(["a"], "minilm", 8)


def test_a_column_of_texts_becomes_vectors_beside_the_numbers(tmp_path):
    words = ["good", "bad"]
    rows = [
        f'{i % 2},"this film number {i} is really very {words[i % 2]}",{i % 5}' for i in range(20)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["label,review,stars", *rows]))
    found = table_sources([tmp_path / "t.csv"], TableSchema(words=64))
    assert found.files["table.json"]["roles"]["review"]["role"] == "text"
    domain = found.sources[0].read(("0", "1"), None).domain
    assert domain.shape == (65,)
    texts = [f"this film number {i} is really very {words[i % 2]}" for i in range(20)]
    assert (domain.x[:, :64].numpy() == hashed_words(texts, 64)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not importlib.util.find_spec(text.PACKAGE), reason="extra text")
def test_minilm_puts_like_sentences_close():
    same, other, far = encode(
        ["the film was wonderful", "a great movie", "interest rates rose"], "minilm", 0
    )
    assert same.shape == (384,)
    assert same @ other > same @ far + 0.2
    assert np.linalg.norm(same) == pytest.approx(1, abs=1e-4)
