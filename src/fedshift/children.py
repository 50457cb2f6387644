"""Child processes, and the caller's script: they run it again only if they need something in it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler

from fedshift.registry import BACKBONES, DATASETS, METHODS, SCENARIOS

KNOWN = ("fedshift.", "fedshift_plugin_")  # modules that a child finds by itself


def needs_script(*sent: object) -> bool:
    """Whether something is registered outside our own modules, or is an object of the script's."""
    registries = (METHODS, BACKBONES, SCENARIOS, DATASETS)
    homes = (e.build.__module__ for registry in registries for e in registry.entries().values())
    return any(not home.startswith(KNOWN) for home in homes) or any(
        b"__main__" in bytes(ForkingPickler.dumps(item)) for item in sent
    )


@contextmanager
def without_script(*, unless: bool) -> Iterator[None]:
    """Start processes inside: they do not run the caller's script, ``unless`` they need it.

    Python would have every new process import the script, and one without the usual
    ``if __name__ == "__main__"`` would start everything once more.
    """
    script = vars(sys.modules["__main__"])
    kept = {name: script[name] for name in ("__file__", "__spec__") if name in script}
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
        return "memory may have run out: try fewer --workers"
    return (
        "it needs what your script defines and runs the script for that: put `if __name__ == "
        '"__main__":` before what the script starts, or the definitions into a file that '
        "FEDSHIFT_PLUGINS names"
    )
