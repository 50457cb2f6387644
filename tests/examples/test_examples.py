"""Every example is one short file, touches nothing else, and keeps the contract."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from fedshift import find_scenario, testing
from fedshift.base.errors import ConfigError, NotAllowedError
from fedshift.cli import main
from fedshift.core.registry import METHODS
from fedshift.testing import start, tiny_scenario

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "methods").glob("*.py"))
PAGE = (ROOT / "docs" / "examples.md").read_text()
ALLOWED = ("client_val", "domain_ids", "server_unlabelled")
PUBLIC = {"public": "tiny", "allow": (*ALLOWED, "public_set", "public_labels")}
METHODS_AND_NEEDS = {  # what the tiny scenario has to have for a method
    "example-fedproto": {},
    "example-fedrod": {},
    "example-fedntd": {},
    "example-harmofl": {},
    "example-vhl": PUBLIC,
    "example-apfl": {},
    "example-frozen-encoder": {},
    "example-pseudo-labels[threshold=0.3]": {"labelled": 0.5},
    "example-trimmed-mean": {},
    "example-top-k[fraction=0.1]": {},
    "example-quantise": {},
}
CLAUSES = (
    testing.finite_and_moving,
    testing.in_process_equals_bytes,
    testing.private_stays_private,
    testing.resumes_exactly,
)


def test_there_are_twelve_and_each_is_under_sixty_lines():
    assert len(FILES) == 12
    lengths = {p.name: len(p.read_text().splitlines()) for p in FILES}
    assert {name: n for name, n in lengths.items() if n >= 60} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_imports_the_public_names_only(path: Path):
    imported = re.findall(r"^(?:from|import) (fedshift\S*)", path.read_text(), flags=re.MULTILINE)
    assert imported == ["fedshift"]


def test_every_example_registers_a_method_whose_name_says_so():
    ours = {n for n, e in METHODS.entries().items() if "fedshift_plugin_" in e.build.__module__}
    tested = {name.partition("[")[0] for name in METHODS_AND_NEEDS}
    assert {n for n in ours if n.startswith("example-")} == tested | {"example-huber"}


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("method", METHODS_AND_NEEDS)
def test_an_example_keeps_the_contract(method, clause, monkeypatch):
    small = partial(tiny_scenario, **{"rounds": 2, "steps": 2} | METHODS_AND_NEEDS[method])
    monkeypatch.setattr(testing, "tiny_scenario", small)
    clause(method)


@pytest.mark.parametrize("method", ["fedavg", "example-huber"])
def test_a_regression_keeps_the_contract(method, monkeypatch):
    short = find_scenario("example-plane", rounds=2, epochs=1)
    monkeypatch.setattr(testing, "tiny_scenario", short.change)
    for clause in CLAUSES[:3]:
        clause(method)


@pytest.mark.parametrize(
    ("method", "error", "expected"),
    [
        ("example-vhl", NotAllowedError, "needs the labels of the public data set"),
        ("example-pseudo-labels", ConfigError, "needs unlabelled samples at each client"),
        ("example-huber", ConfigError, "is for regression"),
    ],
)
def test_what_a_scenario_lacks_is_said_before_round_0(method, error, expected):
    with pytest.raises(error, match=expected):
        start(method)


def test_the_page_names_every_file_and_its_commands_run(tmp_path: Path, monkeypatch):
    names = [p.name for p in FILES if f"`{p.name}`" not in PAGE]
    assert names == []
    (shell,) = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    first, *commands = [shlex.split(line) for line in shell.splitlines()]
    assert first == ["export", "FEDSHIFT_PLUGINS=examples/methods"]
    monkeypatch.setenv("FEDSHIFT_PLUGINS", str(ROOT / "examples" / "methods"))
    assert len(commands) == 3
    for i, (program, *words) in enumerate(commands):
        assert program == "fedshift"
        words += ["--rounds", "1", "--quiet", "--out", str(tmp_path / str(i)), "--workers", "1"]
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code in (0, None)


def test_the_pages_public_set_is_granted():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code.replace("rounds=10", "rounds=1, quiet=True"), {})
