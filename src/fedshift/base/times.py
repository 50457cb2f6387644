"""Times for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(42.4), duration(400), duration(9000)
    ('42 s', '7 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
