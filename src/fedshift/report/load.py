"""Results from disk: one run directory, or a folder of them.

``fedshift.load``, deployments and the commands ``show`` and ``report`` use it. It only
reads: nothing is trained or changed, and an unfinished run has no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedshift.base.errors import RunError
from fedshift.report.results import Comparison, RunResult
from fedshift.runs.best import STORY
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
    if summary is None and (path / STORY).exists():
        raise RunError(f"{path} is a model changed for a site; `fedshift card` tells of it")
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


def load_all(paths: Sequence[Path]) -> Comparison:
    """All finished runs of some run directories and folders of them, in the order given.

    A run that is found twice counts once, or it would pass for two seeds; runs that are not
    finished are in no table. The notes of the comparison say both.
    """
    results: dict[str, RunResult] = {}
    notes: list[str] = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a folder; check the path")
        single = (path / "config.json").exists()
        loaded = [load_run(path)] if single else load_comparison(path).results
        for result in loaded:
            if (known := results.setdefault(result.config.name, result)) is not result:
                told = f"{result.config.name} is in {known.path} and in {result.path}"
                notes.append(f"{told}; it counts once.")
        notes += [] if single else unfinished(path)
    return Comparison([*results.values()], [], paths[0] if len(paths) == 1 else None, notes)


def unfinished(out: Path) -> list[str]:
    """A sentence about the runs in a folder that are not finished, if there are any."""
    begun = [file.parent for file in sorted(out.glob("*/config.json"))]
    names = [path.name for path in begun if not (path / "summary.json").exists()]
    if not names:
        return []
    some = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
    return [f"{len(names)} of {len(begun)} runs in {out} are not finished and in no table: {some}."]
