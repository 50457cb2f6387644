"""Scripts without ``if __name__ == "__main__"``, and what their child processes make of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedshift
from fedshift.base.registry import Registry
from fedshift.core.part import Part
from fedshift.engine import spawn
from fedshift.engine.spawn import needs_script, without_script

HEAD = """
import fedshift
print("run")
"""
OWN = """
from dataclasses import dataclass
from fedshift import Method, Part

class Mine(Part):
    pass

method = Method((Mine(),))
"""
POOL = "fedshift.run({}, rounds=1, transport='pool', workers=2)"
COMPARE = "print(len(fedshift.compare([{}], seeds=[0, 1], rounds=1, workers=2).results))"


def script(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    file = folder / "script.py"
    file.write_text("\n".join(lines))
    source = str(Path(fedshift.__file__).parents[1])
    return subprocess.run(
        [sys.executable, file],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


STARTS = [
    pytest.param(POOL, id="pool", marks=pytest.mark.exhaustive),
    pytest.param(COMPARE, id="compare"),
]


@pytest.mark.parametrize("start", STARTS)
def test_a_script_without_a_guard_runs_once(start, tmp_path: Path):
    found = script(tmp_path, HEAD, start.format("'fedavg'"))
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("run") == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", STARTS)
def test_one_whose_own_parts_are_needed_is_told_to_have_a_guard(start, tmp_path: Path):
    found = script(tmp_path, HEAD, OWN, start.format("method"))
    assert found.returncode == 1
    assert found.stderr.count("Traceback") == 1, found.stderr
    assert 'if __name__ == "__main__":' in found.stderr.splitlines()[-1]


@pytest.mark.exhaustive
def test_one_with_a_guard_may_use_its_own_parts(tmp_path: Path):
    guarded = f"if __name__ == '__main__':\n    {COMPARE.format('method')}"
    found = script(tmp_path, HEAD, OWN, guarded)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "2"


class Elsewhere(Part):
    """A part of a module that a child can import."""


def test_the_script_is_needed_for_objects_that_it_defines(monkeypatch):
    monkeypatch.setattr(spawn, "REGISTRIES", ())
    main = type("Mine", (Part,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", main, raising=False)
    assert not needs_script(Elsewhere, "a name")
    assert needs_script(Elsewhere, main)


def test_the_script_is_needed_for_what_is_registered_where_no_child_looks(monkeypatch):
    own = Registry("thing", "fedshift.methods", "fedshift.methods")
    monkeypatch.setattr(spawn, "REGISTRIES", (own,))
    for home in ("fedshift.methods.mine", "fedshift_plugin_mine_1"):
        own.register(home)(lambda: None)
        own._entries[home].build.__module__ = home
    assert not needs_script()
    own.register("mine")(lambda: None)
    assert needs_script()


def test_the_script_is_itself_again_afterwards(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "script.py", raising=False)
    before = main.__spec__
    with without_script(unless=False):
        assert (main.__spec__, main.__file__) == (None, None)
    with without_script(unless=True):
        assert (main.__spec__, main.__file__) == (before, "script.py")
    assert (main.__spec__, main.__file__) == (before, "script.py")
    monkeypatch.delattr(main, "__file__")  # an interactive session
    with without_script(unless=False):
        pass
    assert not hasattr(main, "__file__")
