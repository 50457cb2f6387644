"""Lower bounds of epsilon that an attacker finds, beside the accountant's: docs/privacy.md.

Run: python benchmarks/privacy_audit.py [TRIALS]
"""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict

from fedshift.base import tree
from fedshift.core.message import Broadcast
from fedshift.core.registry import build
from fedshift.privacy.accountant import epsilon
from fedshift.privacy.audit import Release, audit, server_release, site_release
from fedshift.privacy.dp import CentralDP, LocalDP
from fedshift.testing import start, worker

DELTA = 1e-5


def released(method: str) -> Release:
    """One update of a site, or one model of the server, in a tiny run whose head's bias is sent."""
    session = start(method)
    server = session.server
    (part,) = (p for p in build(method).parts if isinstance(p, CentralDP | LocalDP))
    key = min(server.parameters, key=lambda k: server.shared[k].numel())
    if isinstance(part, CentralDP):
        server.parameters, server.shared = frozenset({key}), tree.pick(server.shared, [key])
        return server_release(part, server, sorted(server.roster)[:2])
    first = worker(session)._open(  # noqa: SLF001
        Broadcast("dark-0", "train", 1, server.shared), defaultdict(dict)
    )
    return site_release(part, lambda: dataclasses.replace(first, _generators={}), [key])


def main() -> None:
    """Print a row per part and noise."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print("| part | noise | accountant | audit, at least | games per world |")
    for part in ("local-dp", "central-dp"):
        for noise in (2.0, 4.0):
            release = released(f"{part}[noise={noise}, randomness=system]")
            said = epsilon(noise, 1, delta=DELTA)
            found = audit(release, said, delta=DELTA, trials=trials, confidence=0.95)
            row = f"| `{part}` | {noise:g} | {said:.2f} | {found.lower:.2f} | {trials} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
