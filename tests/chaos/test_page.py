"""docs/reliability.md names tests that exist and commands that can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from chaos_campaign import campaign, parsed
from chaos_cases import FAMILIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROWS = [line for line in PAGE.partition("| promise | test |")[2].splitlines() if "`tests/" in line]


def test_every_test_of_the_table_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(ROWS) >= 20
    assert all(re.search(r"`tests/[\w/]+\.py`", row) for row in ROWS)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_row_has_a_promise_a_test_and_a_figure():
    assert all(len([cell for cell in row.split("|") if cell.strip()]) == 3 for row in ROWS)


def typed():
    block = PAGE.partition("```bash\n")[2].partition("```")[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.mark.parametrize("words", typed(), ids=" ".join)
def test_every_command_of_the_page_is_understood(words):
    if words[0] == "make":
        recipe = re.search(
            rf"^{words[1]}:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
        )
        words = recipe[1].split()[1:]
    assert (ROOT / words[1]).is_file()
    chosen = parsed(words[2:])
    known = set(campaign(1.0, list(FAMILIES)))
    assert set(chosen.cases or campaign(chosen.scale, chosen.families.split(","))) <= known


def test_the_page_shows_the_families_that_there_are():
    assert re.findall(r"^- `(\w+)`: ", PAGE, flags=re.MULTILINE) == list(FAMILIES)
