"""Rounds of a real deployment on loopback against the same rounds in one process.

Server and two sites with TLS and keys, a toy net: what is left is what a letter costs. The program
is a test of ``make test-deploy``, which also holds the tensors to be equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from common import header

ROOT = Path(__file__).parent.parent
WHICH = "tests/deploy/test_kill.py::test_the_time_of_a_round"


def main() -> None:
    """Print the test's report."""
    print(header())
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--capture=no", WHICH],
        cwd=ROOT,
        env=os.environ | {"FEDSHIFT_TEST_DEPLOY": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise SystemExit(found.stdout)
    print("\n".join(line for line in found.stdout.splitlines() if "in one process" in line))


if __name__ == "__main__":
    main()
