"""The tutorials run from nothing to a served model, and say what their commands say."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from fedshift.cli import main

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import tutorials  # noqa: E402  a script

PAGES = sorted(p.stem for p in tutorials.FOLDER.glob("*.md"))


class InProcess(tutorials.Shell):
    """Commands run in this process, which has imported all that they need; servers do not."""

    def call(self, words: list[str]) -> str:
        if words[0] not in ("fedshift", "python"):
            return super().call(words)
        said = io.StringIO()
        with redirect_stdout(said):
            if words[0] == "fedshift":
                with pytest.raises(SystemExit) as end:
                    main(words[1:])
                assert not end.value.code, words
            else:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(sys, "argv", words[1:])
                    runpy.run_path(words[1], run_name="__main__")
        return said.getvalue()

    def python(self, code: str) -> str:
        exec(compile(code, "<tutorial>", "exec"), {"__name__": "__main__"})
        return ""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    made = InProcess(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSHIFT_HOME", made.env["FEDSHIFT_HOME"])
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("fedshift.experiment.compare.cores", lambda: 1)  # no worker processes
    yield made
    made.close()


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]{3,}", text))


def played(shell: tutorials.Shell, name: str) -> list[tuple[str, str]]:
    """What the page shows below each command, and what the command says."""
    found, said = [], ""
    for block in tutorials.blocks_of((tutorials.FOLDER / f"{name}.md").read_text(), "test"):
        if block.kind == "text":
            found.append((block.body, said))
        elif not block.setup:
            said = shell.run(block)
    return found


@pytest.mark.parametrize("name", tutorials.NOTEBOOKS)
def test_a_tutorial_runs_and_its_commands_say_what_it_shows(shell, name, tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("the tutorials ask the service with curl")
    shown = played(shell, name)
    assert len(shown) >= 7
    pacs = name == "images"  # its output is of other images
    wrong = [words(a) - words(b) for a, b in shown if not pacs and not words(a) <= words(b)]
    assert wrong == []
    assert (tmp_path / "report.html").stat().st_size > 10_000
    [model] = [p for p in (tmp_path / "model").glob("*.onnx") if "int8" not in p.name]
    card = json.loads(model.with_name(f"{model.name}.card.json").read_text())
    assert card["files"][0]["name"] == model.name
    if (tmp_path / "predictions.csv").exists():  # without fedshift the same classes
        ours, alone = ((tmp_path / f).read_text() for f in ("predictions.csv", "again.csv"))
        classes = [[line.split(",")[1] for line in text.splitlines()] for text in (ours, alone)]
        assert classes[0] == classes[1]
        assert len(classes[0]) == 121


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.environ.get("FEDSHIFT_TEST_DEPLOY") != "1", reason="make test-deploy")
def test_three_machines_train_and_serve(tmp_path):
    made = tutorials.Shell(tmp_path)
    try:
        assert [(a, b) for a, b in played(made, "machines") if not words(a) <= words(b)] == []
    finally:
        made.close()


@pytest.mark.parametrize("name", tutorials.NOTEBOOKS)
def test_a_notebook_is_that_of_its_page(name):
    """``python scripts/tutorials.py`` writes them."""
    file = tutorials.FOLDER / f"{name}.ipynb"
    assert file.read_text() == tutorials.notebook_of(name)
    book = json.loads(file.read_text())
    code = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]
    typed = [line for cell in code for line in cell.splitlines() if line.startswith("%fedshift ")]
    assert len(typed) >= 6
    assert not any("serve " in line or "pacs_folders" in line for line in typed)
    assert len({c["id"] for c in book["cells"]}) == len(book["cells"])


@pytest.mark.parametrize("name", PAGES)
def test_every_output_of_a_page_was_pasted(name):
    text = (tutorials.FOLDER / f"{name}.md").read_text()
    empty = [b.span for b in tutorials.blocks_of(text) if b.kind == "text" and not b.body.strip()]
    assert empty == []


def test_the_shown_part_of_an_output_is_what_the_comment_says():
    said = "a  \nb\nc\n\n"
    assert tutorials.shown(said, "") == "a\nb\nc\n"
    assert tutorials.shown(said, "first 1 line") == "a\n"
    assert tutorials.shown(said, "last 2 lines") == "b\nc\n"
