"""What a release is made of: pinned actions, locked requirements, tools that nothing else needs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(name: str, version: str, **told):
    return {"metadata": {"name": name, "version": version}, "download_info": told}


def test_a_lock_has_versions_and_hashes_and_no_address():
    found = [
        package("torch", "2.13.0+cpu", url="https://a.b/t.whl", archive_info=hashed("ab")),
        package("fedshift", "0.3.0", url="file:///here", dir_info={}),
        package("Jinja2", "3.1", url="https://a.b/j.whl", archive_info=hashed("cd")),
    ]
    lines = script("release").locked(found).splitlines()[1:]
    assert lines == ["Jinja2==3.1 --hash=sha256:cd", "torch==2.13.0 --hash=sha256:ab"]


def hashed(digest: str):
    return {"hashes": {"sha256": digest}}


def test_a_package_without_a_hash_ends_the_release():
    with pytest.raises(SystemExit, match=r"no SHA-256 of numpy 2\.0"):
        script("release").locked([package("numpy", "2.0", url="x", archive_info={})])


@pytest.mark.parametrize(
    ("code", "said", "expected", "told"),
    [
        (1, "requests.exceptions.ConnectionError: Max retries exceeded", 0, "nothing was audited"),
        (1, "Found 1 known vulnerability in 1 package", 1, "Found 1 known vulnerability"),
        (0, "No known vulnerabilities found", 0, "1 of 1 packages were audited"),
        (0, "Dependency not found and could not be audited: a (1)", 0, "nothing was audited"),
    ],
)
def test_an_audit_that_asked_nobody_says_so(
    tmp_path, monkeypatch, capsys, code, said, expected, told
):
    release = script("release")
    done = subprocess.CompletedProcess([], code, said, "")
    monkeypatch.setattr(release.subprocess, "run", lambda *_, **__: done)
    (tmp_path / "requirements.txt").write_text("a==1 --hash=sha256:00\n")
    assert release.audit(tmp_path / "requirements.txt") == expected
    assert told in capsys.readouterr().out


def test_the_extras_of_the_lock_exist_and_tests_need_no_fuzzer():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(script("release").EXTRAS) <= set(extras)
    assert "fuzz" not in extras["dev"][0]
    assert "atheris" in extras["fuzz"][0]


def test_tools_and_actions_are_pinned():
    tools = (ROOT / "scripts" / "release-tools.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in tools if line[0] != "#")
    uses = [
        line
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert uses
    assert all(re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v\d", line) for line in uses)


def test_the_security_rules_are_on():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert "S" not in [rule for rules in lint["per-file-ignores"].values() for rule in rules]


# the page about testing, and SECURITY.md


@pytest.mark.parametrize("name", ["docs/testing.md", "SECURITY.md"])
def test_commands_and_files_that_a_page_names_exist(name):
    text = (ROOT / name).read_text()
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"`?make ([a-z-]+)", text))
    assert named <= set(rules)
    files = set(re.findall(r"(?:tests|scripts|benchmarks|docs)/[\w/.-]+\w", text))
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []
    assert "make fuzz" in text


def test_the_page_names_every_fuzz_target():
    text = (ROOT / "docs" / "testing.md").read_text()
    fuzz = script("fuzz")
    section = text.partition("| target | reads |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)`", section, flags=re.MULTILINE) == list(fuzz.NAMES)
    source = (ROOT / "tests" / "fuzz" / "fuzz_targets.py").read_text()
    assert re.findall(r'Target\("([a-z-]+)"', source) == list(fuzz.NAMES)


# scripts/fuzz.py


def test_a_short_fuzz_run_is_counted_and_added_up(tmp_path, capsys, monkeypatch):
    """Without atheris, which ends its process and cannot be counted on to be there."""
    fuzz = script("fuzz")
    folder = tmp_path / "message"
    (folder / "findings").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "fuzz"))
    fuzz.by_loop("message", tmp_path, 0, 1)
    count = fuzz.executions(folder, [])
    assert count >= 2  # the whole inputs
    row = {"target": "message", "date": "2026-01-01", "executions": count, "seconds": 60}
    row |= {"processor_seconds": 30, "peak_mb": 7, "findings": ["crash-1", "oom-2"], "ended": 0}
    assert "1 crashes, 0 hangs, 1 too large, peak 7 MB" in fuzz.line_of(row)
    for _ in range(2):
        fuzz.add_up(tmp_path, row)
    table = (tmp_path / "summary.md").read_text().splitlines()
    assert table[-1] == f"| message | {2 * count} | 2.0 | 1.0 | 2 | 7 | 2026-01-01 |"


def test_executions_are_read_from_what_the_fuzzer_says(tmp_path):
    lines = ["#8192\tpulse  cov: 52 ft: 54\n", "stat::number_of_executed_units: 9001\n"]
    assert script("fuzz").executions(tmp_path, lines) == 9001


def test_a_finding_is_kept_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "fuzz"))
    fuzz = script("fuzz")
    (tmp_path / "message" / "findings").mkdir(parents=True)
    target, one = fuzz.started("message", tmp_path)
    monkeypatch.setitem(vars(target), "read", lambda blob: blob[99])
    one(b"short")
    one(b"other")
    kept = sorted((tmp_path / "message" / "findings").iterdir())
    assert [path.suffix for path in kept] == ["", ".txt"]
    assert kept[0].read_bytes() == b"short"
    assert "IndexError" in kept[1].read_text()


def test_an_unknown_target_is_refused(capsys):
    with pytest.raises(SystemExit):
        script("fuzz").main(["messages"])
    assert "no target is called 'messages'" in capsys.readouterr().err
