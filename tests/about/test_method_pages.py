"""The pages of methods and the page on the field are what the script makes of the declarations."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedshift.core.registry import METHODS, build

ROOT = Path(__file__).parents[2]
CORE = ("fdse", "f2dc", "fedka", "csac", "feddebias")


def script(name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


script("method_pictures")
pages = script("method_pages")


def test_the_committed_pages_are_up_to_date(capsys):
    """If not: ``python scripts/method_pages.py``."""
    assert pages.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_what_stacks_is_up_to_date(capsys):
    """If not: ``python scripts/method_pages.py --stacks``."""
    assert pages.main(["--check", "--stacks"]) == 0, capsys.readouterr().out


def test_every_row_of_the_papers_tables_that_is_a_method_can_be_run():
    """It lists what is missing; each expression is built with its settings."""
    missing = pages.missing()
    assert not missing, "\n".join(f"{name}: {why}" for name, why in missing.items())


def test_the_papers_compare_with_31_methods():
    assert len(pages.baselines()) == 31
    assert set(pages.paper_rows()) == {"FDSE", "F2DC", "FedKA", "CSAC", "FedDebias"}
    assert all(len(row) == 3 for rows in pages.paper_rows().values() for row in rows)


def test_every_method_is_on_a_page_with_its_head():
    for name in pages.ours():
        text = (ROOT / "docs" / "methods" / f"{pages.page_of(name)}.md").read_text()
        assert f"| `{name}` |" in text
        assert text.index(pages.BEGIN) < text.index(pages.END)


def test_a_generated_part_is_filled_and_filled_again():
    once = pages.filled("# A\n\n<!-- generated -->\n\nbody\n", "first")
    assert once == ("# A\n\n<!-- generated -->\n\nfirst\n\n<!-- end of generated -->\n\nbody\n")
    assert pages.filled(once, "first") == once
    assert "second" in pages.filled(once, "second")
    assert "first" not in pages.filled(once, "second")
    two = "<!-- generated: a -->\nmiddle\n<!-- generated: b -->\nend\n"
    both = pages.filled(pages.filled(two, "A", "a"), "B", "b")
    assert re.findall(r"A|B|middle|end$", both.replace("end of", ""), re.MULTILINE) == [
        *("A", "middle", "B", "end"),
    ]
    assert pages.filled(pages.filled(both, "A", "a"), "B", "b") == both


def test_hooks_in_the_table_are_those_that_parts_override():
    found = pages.hooks(build("scaffold"))
    assert found["step"] == "`edit_gradients`"
    assert found["exchange"] == "`uploads`, `send`"
    assert found["server"] == "`merge`"
    assert found["aggregation"] == "uniform"
    assert pages.hooks(build("half"))["channel"] == "`encode`, `decode`"


def test_pairs_are_told_in_few_words():
    any_two = [("a", "b"), ("a", "c"), ("b", "c")]
    assert pages.paired(any_two) == "any two of `a`, `b`, `c`"
    assert pages.paired([("a", "b"), ("a", "c")]) == "`a` with `b`, `c`"
    assert pages.paired([("a", "b"), ("c", "d")]) == "`a` + `b`, `c` + `d`"


@pytest.mark.parametrize("name", CORE)
def test_core_pages_have_equations_and_a_picture(name):
    text = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    assert text.count("$$") == 2
    assert f"](../assets/methods/{name}.svg)" in text
    picture = (ROOT / "docs" / "assets" / "methods" / f"{name}.svg").read_text()
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_equations_are_typeset_without_a_network():
    """KaTeX lies in the documentation, with its licence and the fonts that its style names."""
    folder = ROOT / "docs" / "assets" / "katex"
    style = (folder / "katex.min.css").read_text()
    fonts = set(re.findall(r"fonts/([\w-]+\.woff2)", style))
    assert fonts == {p.name for p in (folder / "fonts").iterdir()}
    assert "MIT" in (folder / "LICENSE").read_text()
    config = (ROOT / "mkdocs.yml").read_text()
    assert "http" not in config
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 700_000


def test_every_method_of_the_project_is_in_the_index():
    text = (ROOT / "docs" / "methods.md").read_text()
    ours = [n for n, e in METHODS.entries().items() if e.build.__module__.startswith("fedshift.")]
    assert [n for n in ours if f"[`{n}`](methods/" not in text] == []
