"""What a run tells while it goes on: bars, a notebook's table, log lines, or nothing."""

from __future__ import annotations

import logging
import subprocess
import sys
import types

import pytest

import fedshift
from fedshift.base import process
from fedshift.base.logs import log, to_streams
from fedshift.experiment import progress
from fedshift.testing import tiny_scenario


def test_elsewhere_each_round_is_a_line_of_the_log(caplog):
    caplog.set_level(logging.INFO, logger="fedshift")
    result = fedshift.run("fedavg", tiny_scenario(), rounds=2)
    assert caplog.messages[0] == "fedavg in tiny: 4 clients, from round 1"
    rounds = [m for m in caplog.messages if "round 2 of 2" in m]
    loss = result.history[-1]["losses"]["task"]
    assert f"task {loss:.3f}" in rounds[0]
    assert {record.name for record in caplog.records} == {"fedshift"}


def test_quiet_is_silent(caplog, capsys):
    caplog.set_level(logging.INFO, logger="fedshift")
    fedshift.run("fedavg", tiny_scenario(), rounds=1, quiet=True)
    fedshift.compare(["fedavg"], [tiny_scenario()], rounds=1, workers=1, quiet=True)
    assert caplog.messages == []
    assert capsys.readouterr() == ("", "")


def test_by_default_a_script_without_a_terminal_prints_nothing(capsys):
    fedshift.run("fedavg", tiny_scenario(), rounds=1)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_bars(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seen = []
    monkeypatch.setattr(
        progress.BoardLine, "round_done", lambda self, row: seen.append(row["round"])
    )
    fedshift.run("fedavg", tiny_scenario(), rounds=2)
    assert seen == [1, 2]


class Handle:
    """A notebook's cell: what it shows now."""

    def __init__(self, shown):
        self.shown = shown

    def update(self, shown):
        self.shown = shown


@pytest.fixture
def notebook(monkeypatch):
    """IPython as far as a kernel shows it."""
    cells = []

    def display(shown, *, display_id):
        assert display_id
        cells.append(Handle(shown))
        return cells[-1]

    shell = type("ZMQInteractiveShell", (), {})()
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    screen = types.ModuleType("IPython.display")
    screen.HTML, screen.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    return cells


def test_a_notebook_gets_one_cell_that_updates_itself(notebook):
    result = fedshift.run("fedavg", tiny_scenario(), rounds=3)
    (cell,) = notebook
    assert "<progress value='3' max='3'>" in cell.shown
    assert f"task {result.history[-1]['losses']['task']:.3f}" in cell.shown


def test_a_notebook_gets_a_row_per_run_and_escapes_names(notebook):
    table = progress.NotebookTable()
    table.update("a", ("<b>", 1, 2, "<i>"), now=True)
    table.update("b", ("two", 2, 2, "done"), now=True)
    (cell,) = notebook
    assert cell.shown.count("<tr>") == 2
    assert "&lt;b&gt;" in cell.shown
    assert "<i>" not in cell.shown


def test_a_comparison_in_a_notebook_shows_all_its_runs_in_one_cell(notebook):
    fedshift.compare(["fedavg", "fedbn"], [tiny_scenario()], rounds=1, workers=1)
    (cell,) = notebook
    assert cell.shown.count("<tr>") == 2


def test_quiet_is_silent_in_a_notebook_too(notebook):
    fedshift.run("fedavg", tiny_scenario(), rounds=1, quiet=True)
    assert notebook == []


def test_an_ipython_shell_is_no_notebook(monkeypatch):
    module = types.ModuleType("IPython")
    module.get_ipython = type("TerminalInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert not progress.in_notebook()


def test_our_own_processes_print_lines_to_the_right_stream(capsys):
    to_streams()
    to_streams()
    log.info("a round\nis over")
    log.warning("look")
    log.error("stop")
    out, err = capsys.readouterr()
    assert out == "a round is over\n"
    assert err == "note: look\nerror: stop\n"


# a library leaves its user's process alone


def test_a_run_does_not_tune_the_process_it_is_called_in(monkeypatch):
    called = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: called.append("memory"))
    monkeypatch.setattr(process, "schedule_as_batch", lambda: called.append("scheduler"))
    fedshift.run("fedavg", tiny_scenario(), rounds=1)
    fedshift.compare(["fedavg"], [tiny_scenario()], rounds=1, workers=1)
    assert called == []
    process.tune_process()
    process.tune_process(worker=True)
    assert called == ["memory", "memory", "scheduler"]


SCRIPT = """
import ctypes, os, sys
import fedshift
from fedshift.testing import tiny_scenario

def heap():
    return [line for line in open("/proc/self/maps") if "[heap]" in line]

before = os.sched_getscheduler(0)
fedshift.run("fedavg", tiny_scenario(), rounds=1)
flags = open("/proc/self/smaps").read()
print(os.sched_getscheduler(0) == before, " hg" in flags.replace("\\n", " "))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a matter of Linux")
def test_a_script_keeps_its_allocator_and_its_scheduler():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False"]
