"""Chaos: runs are killed, stopped, cut off and damaged at random, and must end with the same bits.

``python scripts/chaos.py`` plays the long campaign of ``make chaos`` and writes what came of it to
``chaos/results.jsonl`` and ``chaos/results.md``; started again, it goes on where it was. ``python
scripts/chaos.py kills/pool/17`` plays single cases and tells their story. The seed decides
everything but the clock: ``--seed 3``. Exit code 1 if a promise was broken.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).absolute().parent.parent / "tests" / "chaos"))

if __name__ == "__main__":
    # Nothing here needs it, and its allocator starts a thread: processes are forked from this one.
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    import chaos_campaign

    sys.exit(chaos_campaign.main(sys.argv[1:]))
