"""Whether child processes run the caller's script again, and what to say when that fails.

The worker pool and ``compare`` start their processes inside :func:`without_script`. A child must
never repeat the caller's experiment: Python makes a spawned process import the parent's main script
to find classes defined there, and a script without ``if __name__ == "__main__"`` would start
everything once more.
"""

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
PLUGIN = "fedshift_plugin_"  # prefix of the modules that FEDSHIFT_PLUGINS loads


def needs_script(*sent: object) -> bool:
    """Whether a child cannot do without the caller's script.

    It cannot if the script has registered a method, backbone, scenario or data set that neither the
    package nor a plug-in defines, or if an object in ``sent`` pickles as a class or function of
    ``__main__``. In all other cases a child finds everything by import.
    """
    from_script = (
        entry
        for registry in REGISTRIES
        for entry in registry.entries().values()
        if not entry.build.__module__.startswith((registry.package, PLUGIN))
    )
    return any(from_script) or any(
        b"__main__" in bytes(ForkingPickler.dumps(item)) for item in sent
    )


@contextmanager
def without_script(*, unless: bool) -> Iterator[None]:
    """Start processes inside this block: they skip the caller's script, ``unless`` they need it.

    A spawned process learns from ``__main__.__file__`` and ``__main__.__spec__`` what to import.
    Both are None inside the block and restored afterwards.
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
    """End a child that got here by running its parent's script; the parent reports the reason.

    Called before any process is started. The child is still importing the script at that point,
    which ``multiprocessing`` marks by ``_inheriting``.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)


def why_ended(*, needed_script: bool) -> str:
    """What a user can do about a child process that ended unexpectedly, for the error message."""
    if not needed_script:
        return "memory may have run out: try fewer workers"
    return (
        "it needs what your script defines and runs the script for that: put `if __name__ == "
        '"__main__":` before what the script starts, or the definitions into a file that '
        "FEDSHIFT_PLUGINS names"
    )
