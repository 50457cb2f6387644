"""Every command of docs/privacy.md runs, and what it says of files is so."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from fedshift.cli import main
from fedshift.deploy.policy import SitePolicy

PAGE = Path(__file__).parent.parent / "docs" / "privacy.md"
SHORT = (
    "--rounds",
    "1",
    "--set",
    "scenario.epochs=1",
    "--set",
    "backbone.width=4",
    "--workers",
    "1",
)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.strip()]


def test_every_command_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    """In the order of the page, with fewer rounds; installing is left to the installer."""
    monkeypatch.chdir(tmp_path)
    typed = [shlex.split(line) for line in commands()]
    assert {words[0] for words in typed} == {"pip", "fedshift", "python"}
    ours = [words[1:] for words in typed if words[0] == "fedshift"]
    assert len(ours) >= 4
    for words in ours:
        with pytest.raises(SystemExit) as stop:
            main([*words, *(SHORT if words[0] == "run" else ())])
        assert not stop.value.code, f"{words}: {capsys.readouterr().err}"


def test_the_audit_runs_as_it_is_printed(monkeypatch, capsys):
    """With fewer games."""
    (words,) = [shlex.split(line) for line in commands() if line.startswith("python ")]
    script = PAGE.parent.parent / words[1]
    monkeypatch.setattr("sys.argv", [words[1], "40"])
    code = compile(script.read_text(), str(script), "exec")
    exec(code, {"__name__": "__main__", "__file__": str(script)})
    rows = capsys.readouterr().out.strip().splitlines()
    told = [row.split("|")[1:4] for row in rows[1:]]
    table = PAGE.read_text()
    assert len(told) == 4
    for part, noise, said in told:
        assert f"|{part}|{noise}|{said}|" in table  # the accountant's column


def test_installing_names_an_extra_that_exists():
    (line,) = [line for line in commands() if line.startswith("pip ")]
    extra = re.search(r"fedshift\[(\w+)\]", line)[1]
    project = tomllib.loads((PAGE.parent.parent / "pyproject.toml").read_text())
    packages = " ".join(project["project"]["optional-dependencies"][extra])
    assert "cryptography" in packages
    assert "dp-accounting" in packages


def test_the_policy_of_the_page_is_one():
    (text,) = blocks("toml")
    policy = SitePolicy.model_validate(tomllib.loads(text))
    assert policy.require == ("local-dp",)
    assert set(tomllib.loads(text)) == set(SitePolicy.model_fields)
