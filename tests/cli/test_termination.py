"""SIGTERM, and control characters in what others wrote."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fedshift.base.files import read_json
from fedshift.base.logs import PlainLines, printable
from fedshift.cli.main import main
from fedshift.experiment.run import run
from fedshift.testing import tiny_scenario

RED = "\x1b[31mred\x1b[0m"


@pytest.fixture
def short():
    """A folder with a short name: a socket's path has at most 108 characters."""
    folder = Path(tempfile.mkdtemp(prefix="f"))
    yield folder
    shutil.rmtree(folder)


def test_sigterm_leaves_no_temporary_folder(tmp_path, short):
    temporary, out = short, tmp_path / "run"
    words = ["run", "--method", "fedbn", "--transport", "pool", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedshift", *words, "--rounds", "500", "--out", str(out)],
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    end = time.monotonic() + 120
    while not (out / "checkpoints" / "server.safetensors").exists() and time.monotonic() < end:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    assert list(temporary.glob("fedshift-*"))
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "terminated; the same command with --resume continues after the last round" in said
    assert list(temporary.glob("fedshift-*")) == []
    assert list(tmp_path.glob(".*.lock")) == []


def test_control_characters_are_shown_as_codes():
    assert printable(RED) == "\\x1b[31mred\\x1b[0m"
    assert printable("na\xefve \u4e2d\ttab") == "na\xefve \u4e2d\ttab"
    assert printable("\x9b2J\u202e") == "\\x9b2J\\u202e"


def test_log_lines_and_errors_hold_no_escape_bytes(capsys):
    record = logging.LogRecord("fedshift", logging.WARNING, "", 0, "site %s", (RED,), None)
    PlainLines().emit(record)
    assert "\x1b" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "--method", RED])
    said = capsys.readouterr().err
    assert "\x1b[31m" not in said
    assert "\\x1b[31mred" in said


def test_names_in_run_files_reach_the_screen_as_codes(tmp_path, capsys):
    """JSON may hold a control character as an escape; what is read from it is text to look at."""
    small = tiny_scenario(rounds=1, steps=1, epochs=None, protocols=("personal",), unseen=None)
    run("fedavg", small, out=tmp_path / "run", quiet=True)
    config = tmp_path / "run" / "config.json"
    held = json.loads(config.read_text())
    held["run"]["method"] = f"fedavg{RED}"
    config.write_text(json.dumps(held))
    assert read_json(config)["run"]["method"] == "fedavg\\x1b[31mred\\x1b[0m"
    with pytest.raises(SystemExit):
        main(["show", str(tmp_path / "run")])
    shown = capsys.readouterr()
    assert "\x1b[31mred" not in shown.out + shown.err
    shutil.rmtree(tmp_path / "run")
