"""Whether two commits compute the same: final tensors of every method, hashed, side by side.

``python scripts/same_bits.py OLD [NEW]`` checks both commits out into a temporary folder (NEW is
the working tree if it is left out), plays every method that OLD has on the tiny scenario of the
contract suite and on the embedded digits, in process, in a pool and through Flower in memory, and
prints a table of what is equal. Exit code 1 if anything differs. It needs no installation of its
own: each commit is imported from its ``src`` with the packages of this interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TRANSPORTS = ("in process", "pool", "flower")
SCENARIOS = ("tiny", "digits")
ROUNDS = 3
Hashes = dict[str, str]  # "scenario/method/transport" -> digest


def main(args: list[str]) -> int:
    """Compare two commits, or hash the one that is imported (``--hash METHOD...``)."""
    if args[:1] == ["--methods"]:
        print(json.dumps(known_methods()))
        return 0
    if args[:1] == ["--hash"]:
        print(json.dumps({k: v for method in args[1:] for k, v in hashes_of(method).items()}))
        return 0
    if not args or len(args) > 2:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        trees = [checked_out(commit, Path(folder)) for commit in args]
        trees += [ROOT] * (2 - len(trees))
        methods = json.loads(in_tree(trees[0], "--methods"))
        return 1 if compare(trees, methods) else 0


def checked_out(commit: str, folder: Path) -> Path:
    """The files of a commit, in a folder of their own."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    tree = folder / commit.replace("/", "-")
    tree.mkdir()
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    return tree


def in_tree(tree: Path, *args: str) -> str:
    """This script in another process that imports ``tree``."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).absolute()), *args]
    done = subprocess.run(
        command, env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()[-1]


def compare(trees: list[Path], methods: list[str]) -> int:
    """Print the table row by row; how many cells differ."""
    columns = [f"{scenario}, {transport}" for scenario in SCENARIOS for transport in TRANSPORTS]
    print("| method | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns), sep="\n")
    differing = 0
    for method in methods:
        old, new = (json.loads(in_tree(tree, "--hash", method)) for tree in trees)
        cells = []
        for scenario in SCENARIOS:
            for transport in TRANSPORTS:
                key = f"{scenario}/{method}/{transport}"
                same = old[key] == new[key]
                differing += not same
                cells.append(f"same `{new[key][:8]}`" if same else "**differs**")
        print(f"| `{method}` | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{len(methods)} methods, {differing} of {len(methods) * len(columns)} cells differ")
    return differing


def known_methods() -> list[str]:
    """Every registered method."""
    import fedshift.testing  # noqa: F401, PLC0415  of the tree under test

    return list(registry().METHODS.entries())


def registry() -> Any:
    """The registry's module, wherever this commit keeps it."""
    try:
        from fedshift.core import registry as found  # noqa: PLC0415
    except ImportError:
        from fedshift import registry as found  # noqa: PLC0415  commits before 0.2
    return found


def hashes_of(method: str) -> Hashes:
    """Digests of all that runs of ``method`` leave: the contract suite plays, we look."""
    from fedshift import testing  # noqa: PLC0415

    out: Hashes = {}
    tiny = testing.tiny_scenario
    for scenario in SCENARIOS:
        testing.tiny_scenario = tiny if scenario == "tiny" else digits
        seen: dict[str, str] = {}

        def keep(here: Any, there: Any, what: str, seen: dict[str, str] = seen) -> None:
            name = "pool" if "pool" in what else "flower"
            seen["in process"], seen[name] = digest(testing, here), digest(testing, there)

        testing.require_same = keep
        with every_client_as_a_node(scenario):
            testing.in_process_equals_pool(method)
            testing.in_process_equals_flower(method)
        out |= {f"{scenario}/{method}/{name}": value for name, value in seen.items()}
    testing.tiny_scenario = tiny
    return out


def digits(**changes: Any) -> Any:
    """The embedded digits, a few rounds, with whatever data a method asks for."""
    import fedshift  # noqa: PLC0415

    scenario = fedshift.find_scenario("digits", rounds=ROUNDS, **changes)
    old = not hasattr(scenario, "allow")  # commits before 0.2
    wanted = ("client_val", "domain_ids", "server_unlabelled")
    values = {"grants" if old else "allow": wanted}
    values["newcomer" if old else "private_at_new_site"] = "initial"  # secure-aggregation's terms
    return scenario.change(**values)


class every_client_as_a_node:  # noqa: N801  a context manager
    """Flower's grid in memory has a node for each client, whatever clients the suite names."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario

    def __enter__(self) -> None:
        try:
            from fedshift.transports.flower import grid  # noqa: PLC0415
        except ImportError:
            from fedshift.transports import flower as grid  # noqa: PLC0415  before 0.2
        self.module, self.real = grid, grid.InMemoryGrid
        if self.scenario == "digits":
            names = [f"{d}-{i}" for d in ("scan", "photo", "print", "meter") for i in range(2)]
            self.module.InMemoryGrid = lambda app, nodes: self.real(  # noqa: ARG005
                app, [{"client": name} for name in names]
            )

    def __exit__(self, *_: object) -> None:
        self.module.InMemoryGrid = self.real


def digest(testing: Any, session: Any) -> str:
    """Names, shapes, types and bytes of every tensor, and every metric but the clock."""
    found = hashlib.blake2b(digest_size=16)
    for key, value in sorted(testing.everything(session).items()):
        found.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    found.update(json.dumps(known(testing.numbers(session)), sort_keys=True).encode())
    return found.hexdigest()


def known(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the numbers that every commit has: accuracies and losses, no newer measures.

    The privacy that was spent is accounted differently by commits, and is no result of training.
    """
    scores = ("avg", "std", "all", "worst", "loss", "domains", "clients")
    out = []
    for row in rows:
        kept = {
            protocol: {split: {k: v[k] for k in scores} for split, v in splits.items()}
            for protocol, splits in row.get("scores", {}).items()
        }
        out.append({k: v for k, v in row.items() if k != "privacy"} | {"scores": kept})
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
