"""The documentation has not drifted from the code."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from scipy import stats

import fedshift
from fedshift.base.registry import import_file
from fedshift.core.registry import METHODS
from fedshift.testing import finite_and_moving, in_process_equals_bytes, play, start

ROOT = Path(__file__).parent.parent
TEXTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "methods").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
CORE = ("fdse", "f2dc", "fedka", "csac", "feddebias")


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python[^\n]*\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.slow
def test_the_readmes_example_runs_as_it_is_printed(tmp_path: Path):
    code = blocks(ROOT / "README.md")[0]
    assert len(code.strip().splitlines()) <= 25
    short = code.replace("rounds=20", "rounds=1").replace("range(3)", "range(1)")
    short = f"if __name__ == '__main__':\n    {short.replace(chr(10), chr(10) + '    ')}"
    (tmp_path / "example.py").write_text(short)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "validation" in done.stdout
    assert "fedprox[mu=0.1]" in done.stdout


GUIDE = ["fedbn + head-decay[kappa=0.3]", "halved", "coordinate-median"]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The files of the guide for authors, imported once."""
    folder = tmp_path_factory.mktemp("guide")
    for i, code in enumerate(blocks(ROOT / "docs" / "extending.md")):
        (folder / f"guide{i}.py").write_text(code)
        import_file(folder / f"guide{i}.py")


@pytest.mark.usefixtures("guide")
@pytest.mark.parametrize("method", GUIDE)
def test_the_methods_of_the_guide_keep_the_contract(method: str):
    finite_and_moving(method)
    in_process_equals_bytes(method)


@pytest.mark.usefixtures("guide")
def test_the_analysis_of_the_guide_is_measured():
    row = play(start("fedavg", analyses=("way",)), 1).record.metrics[0]
    assert row["way"]["way"] > 0


def absent(code: str) -> list[str]:
    """What is imported from fedshift, and is not there."""
    out = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedshift"):
            module, names = str(node.module), [alias.name for alias in node.names]
            held = importlib.import_module(module)
            inner = [n for n in names if not hasattr(held, n)]
            out += [f"{module}.{n}" for n in inner if find_spec(f"{module}.{n}") is None]
    return out


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_what_the_texts_import_is_there(text: Path):
    assert [name for block in blocks(text) for name in absent(block)] == []


def test_what_the_tools_import_is_there():
    """Scripts and benchmarks are run now and then: they must not be left behind."""
    files = [f for folder in ("scripts", "benchmarks") for f in (ROOT / folder).glob("*.py")]
    found = {file.name: absent(file.read_text()) for file in files}
    found["same_bits.py"].remove("fedshift.registry")  # of commits before 0.2, which it can play
    assert {name: names for name, names in found.items() if names} == {}


def test_every_method_is_documented():
    text = (ROOT / "docs" / "methods.md").read_text()
    ours = [n for n, e in METHODS.entries().items() if e.build.__module__.startswith("fedshift.")]
    assert [name for name in ours if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", CORE)
def test_the_tests_that_a_methods_page_names_exist(name):
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    named = set(re.findall(r"test_[a-z0-9_]+", page))
    tests = " ".join(p.name + p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) >= 5
    assert sorted(n for n in named if n not in tests) == []
    assert "TABLE" not in page.split()


def test_every_public_name_is_importable_and_the_guides_name_no_other():
    for name in fedshift.__all__:
        assert getattr(fedshift, name) is not None
    used = {n for t in TEXTS for n in re.findall(r"fedshift\.([A-Za-z_]+)\(", t.read_text())}
    assert used <= set(fedshift.__all__)


def test_links_between_the_texts_lead_somewhere():
    for text in TEXTS:
        for target in re.findall(r"\]\(([^)#:\s]+)", text.read_text()):
            assert (text.parent / target).exists(), f"{text.name} links to {target}"


def test_no_source_file_is_longer_than_400_lines():
    long = {p: len(p.read_text().splitlines()) for p in (ROOT / "src").rglob("*.py")}
    assert {str(p): n for p, n in long.items() if n > 400} == {}


def spread_of(page: Path) -> tuple[set[str], str]:
    """The tables with a ± that a page shows, and its text."""
    text = " ".join(page.read_text().split())
    named = set(re.findall(r'--8<-- "(docs/tables/[^"]+)"', text))
    return {name for name in named if "±" in (ROOT / name).read_text()}, text


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.name)
def test_what_follows_a_plus_minus_is_said_with_the_number_of_seeds(page: Path):
    """A ± is a 95 % interval where the table's head says so, else a deviation with its factor.

    The factor from a deviation to the interval is t / sqrt(n).
    """
    shown, text = spread_of(page)
    heads = {(ROOT / name).read_text().splitlines()[0] for name in shown}
    if heads and all("95 %" in head for head in heads):
        assert re.search(r"\b(three|five)\b", text)
        assert "95 % interval" in text
        return
    if not shown:
        return
    n = {"three": 3, "five": 5}[re.search(r"standard deviation over (?:the )?(\w+) seeds", text)[1]]
    factor = float(re.search(r"95 % interval of a mean is ± ([\d.]+) of these", text)[1])
    assert factor == round(float(stats.t.ppf(0.975, n - 1)) / n**0.5, 1)


def test_every_table_with_a_plus_minus_is_on_a_page():
    files = {str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "tables").rglob("*.md")}
    shown = set().union(*(spread_of(page)[0] for page in TEXTS))
    assert {f for f in files if "±" in (ROOT / f).read_text()} == shown
