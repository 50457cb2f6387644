"""Adding a method is one file and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedshift.testing import CONTRACT

SOURCE = '''
"""Shrink: pull the head towards zero; a made-up method for the test."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import (
    Client,
    Method,
    ModelSpec,
    Part,
    PayloadSpec,
    Step,
    Tree,
    Uploads,
    register,
    setting,
)


@dataclass(frozen=True)
class Shrink(Part):
    """kappa/2 * |head|^2, counted over visits in the client's state."""

    kappa: float = setting(0.1, "strength", low=0.0)

    def uploads(self, model: ModelSpec) -> Uploads:
        """One number."""
        return {"train": {"visits": PayloadSpec((), low=1, whole=True)}}

    def begin(self, client: Client) -> None:
        """Count the visit."""
        seen = client.state[self.name].get("visits", torch.zeros(()))
        client.state[self.name]["visits"] = seen + 1

    def loss(self, client: Client, step: Step) -> Tensor:
        """The penalty."""
        squares = [p.square().sum() for p in client.net.head_module.parameters()]
        return 0.5 * self.kappa * torch.stack(squares).sum()

    def finish(self, client: Client) -> Tree:
        """Tell the server how often this client was visited."""
        return {"visits": client.state[self.name]["visits"]}


@register("shrink", paper="nobody, never")
def shrink() -> Method:
    """FedAvg with a smaller head."""
    return Method((Shrink(),))
'''


def fedshift(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedshift", *args]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | env, timeout=240, check=False
    )


def test_a_file_written_now_is_listed_run_and_keeps_the_contract(tmp_path: Path):
    file = tmp_path / "shrink.py"
    file.write_text(SOURCE)
    assert 30 <= len(SOURCE.strip().splitlines()) <= 80
    env = {"FEDSHIFT_PLUGINS": str(tmp_path)}
    listed = fedshift("list", "methods", "--json", **env)
    assert '"name": "shrink"' in listed.stdout, listed.stderr
    checked = fedshift("check", "shrink[kappa=0.3]", **env)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("kept") == len(CONTRACT)


@pytest.mark.exhaustive  # it installs a package
def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path):
    (tmp_path / "their_package.py").write_text(SOURCE)
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedshift.methods]\nshrink = their_package\n")
    out = tmp_path / "run"
    done = fedshift(
        "run",
        "--method",
        "fedbn + shrink",
        "--rounds",
        "1",
        "--quiet",
        "--out",
        str(out),
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert '"shrink"' in (out / "metrics.jsonl").read_text()


def test_a_missing_plugin_folder_is_one_line(tmp_path: Path):
    """Also after a list was kept without it."""
    assert fedshift("list", "methods", FEDSHIFT_HOME=str(tmp_path)).returncode == 0
    told = {"FEDSHIFT_HOME": str(tmp_path), "FEDSHIFT_PLUGINS": "/nowhere/at/all"}
    done = fedshift("list", "methods", **told)
    assert done.returncode == 2
    assert done.stderr == "error: FEDSHIFT_PLUGINS names /nowhere/at/all, which does not exist\n"


def test_a_part_that_needs_arguments_is_passed_over(tmp_path: Path):
    (tmp_path / "needy.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedshift.core.method import Part\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Needy(Part):\n"
        "    size: int\n"
    )
    done = fedshift("list", "parts", FEDSHIFT_PLUGINS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "mixup" in done.stdout
    assert "needy" not in done.stdout
