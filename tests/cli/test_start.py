"""The command line answers at once, completes, and spells what the library's errors name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedshift
from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.cli import catalogue, main
from fedshift.cli.options import flag


def shell(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedshift", *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


WATCH = """
import sys
from fedshift.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["compare", "--help"],
        ["data", "--help"],
        ["--version"],
        ["server", "run", "--help"],
        ["site", "init", "--help"],
        ["data", "add", "--help"],
    ],
)
def test_help_does_not_import_torch(words):
    code = f"{WATCH}print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"


def test_a_kept_list_is_shown_without_importing_torch(home):
    first = shell("list", "--json", FEDSHIFT_HOME=str(home))
    code = f"{WATCH}print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "list", "--json"], capture_output=True, text=True, check=True
    )
    shown, torch = done.stdout.splitlines()
    assert torch == "False"
    assert json.loads(shown) == json.loads(first.stdout)


PLUGIN = """
from fedshift import Method, register

@register("mine")
def mine() -> Method:
    \"\"\"{text}.\"\"\"
    return Method()
"""


def test_the_list_follows_plug_ins_as_they_change(home, tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN.format(text="First"))
    told = []
    for text in ("First", "Second time"):
        plugin.write_text(PLUGIN.format(text=text))
        shown = shell("list", "--json", FEDSHIFT_HOME=str(home), FEDSHIFT_PLUGINS=str(plugin))
        told += [row["what"] for row in json.loads(shown.stdout) if row["name"] == "mine"]
    assert told == ["First.", "Second time."]
    plain = shell("list", "--json", FEDSHIFT_HOME=str(home))
    assert "mine" not in [row["name"] for row in json.loads(plain.stdout)]


@pytest.mark.parametrize("kind", ["methods", "parts", "scenarios", "backbones", "datasets"])
def test_a_kept_list_is_what_is_found(kind, home):
    found = catalogue.catalogue(kind)
    assert (home / "catalogue" / f"{kind}.json").exists()
    assert catalogue.catalogue(kind) == found == json.loads(json.dumps(catalogue.list_all(kind)))


@pytest.mark.parametrize("content", ["", "[]", '{"digest": 1}', "not JSON"])
def test_a_damaged_kept_list_is_made_again(content, home):
    (home / "catalogue").mkdir(parents=True)
    (home / "catalogue" / "backbones.json").write_text(content)
    assert "cnn" in [row["name"] for row in catalogue.catalogue("backbones")]


def test_a_home_that_cannot_be_written_still_lists(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "file"))
    assert "cnn" in [row["name"] for row in catalogue.catalogue("backbones")]


def test_completion_is_installed_and_completes(tmp_path, home):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m fedshift --install-completion; true"],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "completion installed" in done.stdout
    script = Path(sys.executable).with_name("fedshift")
    if not script.exists():
        pytest.skip("the console script is not installed")

    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        found = subprocess.run(
            [str(script)],
            env=os.environ | words | {"_FEDSHIFT_COMPLETE": "complete_bash"},
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.split()

    assert completed("fedshift ru") == ["run"]
    assert completed("fedshift run --method fedba") == ["fedbabu"]
    assert completed("fedshift run --scenario fdse/off") == ["fdse/office-caltech10"]


def test_old_options_work_and_are_hidden(tmp_path, capsys):
    out = str(tmp_path / "r")
    words = ["run", "--method", "fedavg", "--rounds", "1", "--transport", "inprocess", "--quiet"]
    assert run(*words, "--grant", "public_set", "--out", out) == 0
    assert "public_set" in fedshift.load(out).config.scenario.allow
    capsys.readouterr()
    assert "--grant" not in shell("run", "--help").stdout
    assert "--allow" in shell("run", "--help").stdout


# errors


def test_an_error_names_arguments_and_the_command_line_its_flags(tmp_path, capsys):
    out = tmp_path / "r"
    words = ["run", "--method", "fedavg", "--rounds", "2", "--transport", "inprocess", "--quiet"]
    run(*words, "--out", str(out))
    (out / "summary.json").unlink()
    capsys.readouterr()
    assert run(*words, "--out", str(out)) == 2
    message = capsys.readouterr().err.strip()
    assert "continue it with resume=True (--resume)" in message
    assert "\n" not in message
    assert run(*words, "--out", str(out), "--resume") == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--method", "fedka", "--set", "scenario.allow=client_val"], "--allow server_unlabelled"),
        (["--method", "fedavg", "--scale", "huge"], "--scale laptop"),
        (["--method", "fedavg", "--on-loss", "wait"], "--timeout SECONDS"),
        (["--method", "f2dc", "--backbone", "mlp"], "--set scenario.backbone=cnn"),
        (["--method", "fedavg", "--scenario", "pacs"], "(--from hub or DIR)"),
    ],
)
def test_flags_that_mend_an_error_are_in_its_line(words, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)
    assert run("run", *words, "--out", str(tmp_path / "r")) == 2
    message = capsys.readouterr().err.strip()
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("resume", "--resume"),
        ("on_loss=wait", "--on-loss wait"),
        ("allow=public_set", "--allow public_set"),
        ("scenario.unseen=DOMAIN", "--set scenario.unseen=DOMAIN"),
        ("from=hub:ID or DIR", "--from hub:ID or DIR"),
    ],
)
def test_an_argument_is_spelled_as_a_flag(option, expected):
    assert flag(option) == expected


def test_an_error_keeps_its_options_when_it_crosses_a_process():
    from multiprocessing.reduction import ForkingPickler

    error = ConfigError("no", "resume", "out=DIR")
    again = ForkingPickler.loads(bytes(ForkingPickler.dumps(error)))
    assert (str(again), again.options, type(again)) == ("no", ("resume", "out=DIR"), ConfigError)
    assert FedshiftError("plain").options == ()
