"""Every kept input, and a few seconds of new ones: nothing but success and our own errors.

``corpus/TARGET`` holds inputs that once were findings, named by what they caused, and some that
reach far. ``make fuzz`` looks for more, see docs/testing.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import fuzz_targets
import pytest
from fuzz_mutations import KINDS, mutated
from fuzz_targets import TARGETS, Finding, Target
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.base.errors import RunError

CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
SLOW = ("checkpoint", "run-lines", "dataset-index", "table")  # that read or write many files


@pytest.fixture(autouse=True)
def own_home(monkeypatch):
    """The targets set FEDSHIFT_HOME; other tests must not see it."""
    monkeypatch.setenv("FEDSHIFT_HOME", os.environ.get("FEDSHIFT_HOME", ""))
    fuzz_targets.room()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_inputs_are_read_or_refused(path: Path):
    TARGETS[path.parent.name].run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_whole_inputs_are_accepted(name: str):
    refused = [blob[:80] for blob in TARGETS[name].whole() if not TARGETS[name].run(blob)]
    assert refused == []


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused(name: str):
    target = TARGETS[name]
    whole = target.whole()
    counts = {True: 0, False: 0}

    @settings(max_examples=40 if name in SLOW else 120)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 2**32))
    def run(which: int, seed: int) -> None:
        counts[target.run(mutated(whole[which], Random(seed), target.kind))] += 1

    run()
    assert counts[False] > 0  # the changes do harm


def test_the_kept_inputs_are_small():
    assert KEPT
    assert sum(path.stat().st_size for path in KEPT) < 200_000
    assert {path.parent.name for path in KEPT} <= set(TARGETS)


# What the targets themselves promise


def failing(error: Exception) -> Target:
    def read(_blob: bytes) -> None:
        raise error

    return Target("failing", "bytes", list, read)


def test_our_own_errors_are_no_finding():
    assert failing(RunError("damaged")).run(b"") is False


@pytest.mark.parametrize(
    ("error", "kind"),
    [(KeyError("x"), "crash"), (RecursionError(), "crash"), (MemoryError(), "memory")],
)
def test_any_other_error_is_a_finding(error, kind):
    with pytest.raises(Finding) as found:
        failing(error).run(b"")
    assert found.value.kind == kind


def test_time_and_memory_beyond_the_limits_are_findings(monkeypatch):
    reader = Target("slow", "bytes", list, lambda _blob: None)
    clock = iter([0.0, fuzz_targets.SECONDS + 1])
    monkeypatch.setattr(fuzz_targets.time, "process_time", lambda: next(clock))
    with pytest.raises(Finding, match="hang"):
        reader.run(b"")
    monkeypatch.undo()
    peak = iter([100.0, 101.0 + fuzz_targets.MEGABYTES])
    monkeypatch.setattr(fuzz_targets, "_peak", lambda: next(peak))
    with pytest.raises(Finding, match="memory"):
        reader.run(b"")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_change_takes_any_bytes(kind: str):
    rng = Random(0)
    for blob in (b"", b"\0", b"{}", b"a,b\n1,2\n", b"x.json\n[1]", rng.randbytes(300)):
        assert isinstance(mutated(blob, rng, kind), bytes)
    again = [mutated(b'{"a": [1, 2]}', Random(5), kind) for _ in range(2)]
    assert again[0] == again[1]
