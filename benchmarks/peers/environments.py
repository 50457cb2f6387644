"""Who takes part, and an environment of its own for each framework."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

PACKAGES = {
    "pfl": ("pfl[pytorch]==0.6.0",),
    "fedlab": ("fedlab==1.3.0",),
    "flgo": ("flgo==0.4.4",),
    "flower": ("flwr[simulation]==1.41.0",),
}


@dataclass(frozen=True)
class Peer:
    """A line of the table: a script, the environment it runs in (None: this one), its words."""

    title: str
    script: str
    environment: str | None = None
    words: tuple[str, ...] = ()
    scored: bool = True


PEERS = {
    "bare": Peer("bare loop", "bare_peer.py", scored=False),
    "by-hand": Peer("FedAvg by hand", "bare_peer.py", words=("by-hand",)),
    "fedshift": Peer("fedshift, in process", "fedshift_peer.py"),
    "fedshift-pool": Peer("fedshift, pool of 2", "fedshift_peer.py", words=("pool",)),
    "pfl": Peer("pfl", "pfl_peer.py", "pfl"),
    "pfl-pair": Peer("pfl, 2 processes", "pfl_pair.py", "pfl"),
    "fedlab": Peer("FedLab", "fedlab_peer.py", "fedlab"),
    "flgo": Peer("FLGo", "flgo_peer.py", "flgo"),
    "flgo-threads": Peer("FLGo, 2 threads", "flgo_peer.py", "flgo", ("threads",)),
    "flgo-processes": Peer("FLGo, 2 processes", "flgo_peer.py", "flgo", ("processes",)),
    "flower": Peer("Flower, Ray, 2 actors", "flower_sim.py", "flower"),
}
# FLGo starts its processes anew in each round, which takes seconds: only if asked for.
USUAL = tuple(name for name in PEERS if name != "flgo-processes")


def make(name: str, folder: Path) -> Path:
    """The interpreter of a framework's environment, which is made if it is not there yet."""
    scenario = folder / name
    interpreter, done = scenario / "bin" / "python", scenario / "installed.txt"
    version = torch.__version__.partition("+")[0]
    wanted = "\n".join([*PACKAGES[name], f"torch=={version}", "safetensors"])
    if done.exists() and done.read_text() == wanted:
        return interpreter
    print(f"making {scenario}: {', '.join(PACKAGES[name])}", file=sys.stderr, flush=True)
    venv.create(scenario, clear=True, with_pip=True)
    pins = scenario / "pins.txt"
    pins.write_text(f"torch=={version}\n")  # no other build, no other version for anybody
    install = [interpreter, "-m", "pip", "install", "--quiet", "--constraint", pins]
    subprocess.run([*install, *wanted.split("\n")], check=True)
    done.write_text(wanted)
    return interpreter


def variables(environment: str | None, scratch: Path) -> dict[str, str]:
    """One thread each; Ray on the loopback interface; nobody calls home."""
    paths = [HERE] if environment else [HERE, HERE.parent, ROOT / "src"]
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONWARNINGS": "ignore",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(scratch / "flwr"),
        "RAY_TMPDIR": str(scratch),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
