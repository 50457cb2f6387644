"""Hostile replies take no more memory than honest ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource, sys
sys.path[:0] = sys.argv[1:]
import torch
import conftest, test_replies as cases

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

field = conftest.Playground("fedavg")
field.play("train", lambda u: u)
honest = peak()
large = {
    "repeated": cases.repeated(5_000),
    "nested": cases.nested(10**6),
    "named": cases.text(lambda t: t.replace("head.weight", "h" * 10**7)),
    "empty entries": lambda u: cases.replace(
        u, payload={f"mixup/{i}": torch.empty(0) for i in range(5_000)}
    ),
    "many metrics": cases.scalars(metrics={str(i): 1.0 for i in range(100_000)}),
    "too much": cases.add("mixup/x", torch.zeros(20 * 2**20, dtype=torch.uint8), "payload"),
    "a shape of 2^40": cases.layout([2**40]),
}
for name, change in large.items():
    assert field.outcome("train", change) == "refused", name
print(honest, peak())
"""


def test_the_servers_memory_stays_below_twice_that_of_an_honest_round():
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(here), str(here.parent / "helpers")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    honest, hostile = map(int, done.stdout.split())
    assert hostile < 2 * honest
