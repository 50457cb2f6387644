"""Child processes, and the caller's script: they run it again only if they need something in it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

from fedshift.core.registry import BACKBONES, METHODS, SCENARIOS
from fedshift.data.registry import DATASETS

REGISTRIES = (METHODS, BACKBONES, SCENARIOS, DATASETS)
PLUGIN = "fedshift_plugin_"  # what the modules of FEDSHIFT_PLUGINS are called


def needs_script(*sent: object) -> bool:
    """Whether something is registered where no child looks, or is an object of the script's."""
    strange = (
        entry
        for registry in REGISTRIES
        for entry in registry.entries().values()
        if not entry.build.__module__.startswith((registry.package, PLUGIN))
    )
    return any(strange) or any(b"__main__" in bytes(ForkingPickler.dumps(item)) for item in sent)


@contextmanager
def without_script(*, unless: bool) -> Iterator[None]:
    """Start processes inside: they do not run the caller's script, ``unless`` they need it.

    Python would have every new process import the script, and one without the usual
    ``if __name__ == "__main__"`` would start everything once more.
    """
    script = vars(sys.modules["__main__"])
    kept: dict[str, Any] = {
        name: script[name] for name in ("__file__", "__spec__") if name in script
    }
    script.update({} if unless else dict.fromkeys(kept))
    try:
        yield
    finally:
        script.update(kept)


def end_if_repeated() -> None:
    """End a child that came here by running its parent's script; the parent tells the reason."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)


def why_ended(*, needed_script: bool) -> str:
    """What to do about a process that ended by itself."""
    if not needed_script:
        return "memory may have run out: try fewer workers"
    return (
        "it needs what your script defines and runs the script for that: put `if __name__ == "
        '"__main__":` before what the script starts, or the definitions into a file that '
        "FEDSHIFT_PLUGINS names"
    )
