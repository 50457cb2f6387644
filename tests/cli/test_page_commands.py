"""Options of the commands that show runs, typed as people type them."""

from __future__ import annotations

import pytest
from PIL import Image

import fedshift
from fedshift.cli import main
from fedshift.report.web import LiveView
from fedshift.testing import tiny_scenario


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One finished run."""
    path = tmp_path_factory.mktemp("runs") / "fedavg"
    fedshift.run("fedavg", tiny_scenario(rounds=1), out=path, quiet=True)
    return path


def typed(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code or 0


def test_a_picture_is_shown_at_the_end_of_the_page(played, tmp_path, capsys):
    picture, page = tmp_path / "features.png", tmp_path / "report.html"
    Image.new("RGB", (4, 4)).save(picture)
    assert typed("report", played, "--mixed", "--figure", picture, "-o", page) == 0
    assert str(page) in capsys.readouterr().out
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 1
    assert typed("report", played, "--figure", tmp_path / "none.png", "-o", page) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_live_page_tells_its_address_and_ends_with_control_c(played, capsys, monkeypatch):
    asked = []

    def interrupted(view):
        asked.append(view.address)
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveView, "serve_forever", interrupted)
    assert typed("watch", played, "--web", "--port", "0", "--every", "3") == 0
    assert asked[0].startswith("http://127.0.0.1:")
    assert asked[0] in capsys.readouterr().out


def test_a_requeued_run_is_begun_and_then_continued(tmp_path):
    words = ["run", "--method", "fedavg", "--scenario", "tiny", "--quiet", "--out", tmp_path / "r"]
    assert typed(*words, "--rounds", "1", "--requeue") == 0
    assert typed(*words, "--rounds", "1", "--requeue") == 0
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1
