"""Model cards tell what a run knows, escape what users named, and load nothing."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

import fedshift
from fedshift.base.errors import ConfigError
from fedshift.runs.predictions import read_predictions
from fedshift.serve.card import card_of, reliability
from fedshift.serve.card_text import html, markdown, write_card
from fedshift.testing import tiny_scenario


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """A run with noise at the sites, and one model for all."""
    pytest.importorskip("dp_accounting")
    out = tmp_path_factory.mktemp("noisy") / "run"
    fedshift.run("fedavg + local-dp", tiny_scenario(rounds=1), out=out, quiet=True)
    return out


@pytest.fixture(scope="module")
def card(noisy):
    return card_of(noisy, licence="CC BY 4.0")


def test_sizes_counts_and_scores_are_those_of_the_run(noisy, card):
    assert card["data"]["domains"]["dark"] == {"train": 22, "val": 12, "test": 16}
    assert card["data"]["test_classes"]["dark"] == {"a": 4, "b": 4, "c": 4, "d": 4}
    assert {name: row["domain"] for name, row in card["data"]["sites"].items()} == {
        "dark-0": "dark", "dark-1": "dark", "bright-0": "bright", "bright-1": "bright",
    }  # fmt: skip
    assert sum(row["examples"] for row in card["data"]["sites"].values()) == 22 + 13
    [personal] = card["results"]
    kept = [p for p in read_predictions(noisy) if p.domain == "dark"]  # of both of its sites
    counts = sum(confusion_matrix(p.y, p.out.argmax(1)) for p in kept)
    share = np.trace(counts) / counts.sum()
    assert personal["domains"]["dark"]["accuracy"] == pytest.approx(100 * share)
    p = (16 * share + 2) / 20  # Agresti and Coull
    width = 100 * 1.959964 * np.sqrt(p * (1 - p) / 20)
    assert personal["domains"]["dark"]["interval"] == pytest.approx(width)


def test_the_worst_domain_has_the_lowest_score(noisy):
    run = fedshift.load(noisy)
    run.summary["protocols"]["personal"]["selected"]["metrics"]["domains"] = {
        "bright": 60.0, "dark": 40.0,
    }  # fmt: skip
    [row] = card_of(run)["results"]
    assert row["worst"] == {"name": "dark", "accuracy": 40.0}


def test_reliability_bins_and_their_error_follow_guo():
    confidence = torch.tensor([0.95, 0.95, 0.97, 0.97, 0.65, 0.65]).double()
    right = torch.tensor([True, True, True, False, True, False])
    found = reliability(confidence, right)
    # two of 15 bins: 4 samples at 0.96 with 3/4 right, 2 at 0.65 with 1/2 right
    assert [b["count"] for b in found["bins"]] == [2, 4]
    assert found["ece"] == pytest.approx(100 * (4 * (0.96 - 0.75) + 2 * (0.65 - 0.5)) / 6)


def test_what_left_the_sites_is_the_ledgers_sum(images):
    card = card_of(images)
    lines = [json.loads(line) for line in (images / "ledger.jsonl").read_text().splitlines()]
    up = sum(row["bytes"] for row in lines if row.get("direction") == "up")
    assert sum(row["bytes"] for row in card["left"]) == up
    assert "No differential privacy" in markdown(card)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def test_names_are_escaped_and_the_page_loads_nothing(card):
    evil = '<script>alert(1)</script>"|`[x](http://a)'
    changed = json.loads(json.dumps(card).replace("dark", json.dumps(evil)[1:-1]))
    page = html(changed | {"licence": evil, "site": evil})
    tags = Tags()
    tags.feed(page)
    assert not {"script", "link", "iframe", "img", "a", "object"} & {tag for tag, _ in tags.seen}
    assert "svg" in {tag for tag, _ in tags.seen}
    assert not [a for _, a in tags.seen if any(k.startswith("on") or k == "src" for k in a)]
    links = [v for _, a in tags.seen for k, v in a.items() if k.endswith("href")]
    assert all(str(v).startswith("#") for v in links)
    text = markdown(changed | {"licence": evil})
    assert "<script" not in text.replace("\\<", "")
    rows = [line for line in text.splitlines() if line.startswith("| domain | \\<")]
    assert rows
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


def test_a_card_is_beside_every_export_with_checksums(images, tmp_path):
    done = fedshift.export(images, tmp_path / "m.st", "safetensors", site="dark-0", licence="MIT")
    told = json.loads((tmp_path / "m.st.card.json").read_text())
    assert told["files"][0]["sha256"] == hashlib.sha256(done.path.read_bytes()).hexdigest()
    assert (told["site"], told["licence"]) == ("dark-0", "MIT")
    assert "Licence: MIT." in (tmp_path / "m.st.card.md").read_text()
    assert "own model of site dark-0" in (tmp_path / "m.st.card.html").read_text()


def test_a_card_of_another_kind_is_refused(card, tmp_path):
    with pytest.raises(ConfigError, match=r"ends in '.pdf'; a card is one of .md, .json, .html"):
        write_card(card, tmp_path / "card.pdf")


def test_a_private_run_tells_what_it_spent(card):
    found = card["privacy"]
    assert any(key.endswith("epsilon") for key in found["guarantees"])
    assert found["visits"] == dict.fromkeys(("bright-0", "bright-1", "dark-0", "dark-1"), 1)
    assert "No differential privacy" not in markdown(card)
