"""Results from disk: one run directory, or a folder of them.

``fedshift.load``, deployments and the commands ``show`` and ``report`` use it. It only
reads: nothing is trained or changed, and an unfinished run has no result.
"""

from __future__ import annotations

from pathlib import Path

from fedshift.base.errors import RunError
from fedshift.report.results import Comparison, RunResult
from fedshift.runs.record import read_config, read_lines, read_summary


def load(path: Path | str) -> RunResult | Comparison:
    """A finished run from its directory, or a comparison of all finished runs in a folder.

    Examples:
        A folder that does not exist is an error:

        >>> load("/nowhere")
        Traceback (most recent call last):
        fedshift.base.errors.RunError: /nowhere is not a folder; check the path
    """
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path} is not a folder; check the path")
    return load_run(path) if (path / "config.json").exists() else load_comparison(path)


def load_run(path: Path) -> RunResult:
    """A finished run from its directory."""
    config = read_config(path)
    summary = read_summary(path)
    if summary is None:
        raise RunError(
            f"{path} is not finished; continue it with resume=True and out={str(path)!r}",
            f"out={path}",
            "resume",
        )
    return RunResult(config, read_lines(path / "metrics.jsonl"), summary, path)


def load_comparison(out: Path) -> Comparison:
    """All finished runs in a folder, in the order in which they were started."""
    found = sorted(out.glob("*/config.json"), key=lambda file: file.stat().st_mtime_ns)
    found = [file for file in found if (file.parent / "summary.json").exists()]
    if not found:
        raise RunError(f"{out} holds no finished run; `fedshift compare` makes some", f"out={out}")
    return Comparison([load_run(file.parent) for file in found], [], out)
