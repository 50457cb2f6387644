"""Small data of made sites, whose differences are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from guide_data import forget_own

Save = Callable[..., Path]


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDSHIFT_SOURCES", raising=False)
    yield
    forget_own()


@pytest.fixture
def save(tmp_path) -> Save:
    """Writes a folder with one npz per site, of inputs and labels; every fourth row is a test."""

    def sites(name: str = "sites", /, **of: tuple[np.ndarray, np.ndarray]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for site, (x, y) in of.items():
            split = (np.arange(len(y)) % 4 == 3).astype(np.uint8)  # 1 is test in an npz
            top = int(y.max()) + 1
            classes = np.array(["no", "yes", "other"][:top])
            np.savez(folder / f"{site}.npz", x=x, y=y, split=split, classes=classes)
        return folder

    return sites
