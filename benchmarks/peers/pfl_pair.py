"""pfl in two processes of one thread: what torchrun does, but on the loopback interface alone.

pfl joins processes that torchrun has started. torchrun's store listens on every interface, so the
two meet in a file instead; what they exchange in a round goes through gloo, as with torchrun.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch


def join(rank: int, meeting: str) -> None:
    """Run one of the two processes."""
    os.environ |= {"TORCHELASTIC_RUN_ID": "peers", "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    torch.distributed.init_process_group = partial(
        torch.distributed.init_process_group,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=2,
    )
    from pfl_peer import main  # noqa: PLC0415  pfl joins the others while it is imported

    main()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        join(1, sys.argv[3])
    else:
        with tempfile.TemporaryDirectory() as folder:
            scenario = str(Path(folder) / "meeting")
            second = subprocess.Popen(
                [sys.executable, *sys.argv, scenario], stdin=subprocess.DEVNULL, stdout=2
            )
            join(0, scenario)
            second.wait()
