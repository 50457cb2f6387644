"""Processor time of a peer and all it has started: what else the machine does hardly moves it."""

from __future__ import annotations

import os
from pathlib import Path


def seconds(session: int) -> float:
    """Seconds so far of a session's processes, with those that they have seen end (Linux)."""
    ticks = 0
    for scenario in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = scenario.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since we looked
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))  # its own and its children's, user and system
    return ticks / os.sysconf("SC_CLK_TCK")
