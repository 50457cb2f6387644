"""The page on the ranking has the numbers of its results file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_results_file():
    command = [sys.executable, ROOT / "scripts/ranking.py", "page", "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run scripts/ranking.py page"
