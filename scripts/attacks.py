"""Makes docs/tables/attacks.md: accuracy under attack, by rule; resumable, 15 minutes a seed.

The table has the seeds that are complete, with 95 % intervals from two on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fedshift.core.config import configure
from fedshift.core.net import load
from fedshift.core.registry import SCENARIOS
from fedshift.data.dealing.partitions import PerDomain
from fedshift.engine.attacks import TARGET, with_trigger
from fedshift.experiment.session import Session, prepare
from fedshift.report.intervals import seed_interval

ROOT = Path(__file__).parent.parent
CACHE = ROOT / "runs" / "attacks.jsonl"
RULES = ("fedavg", "median", "trimmed-mean", "krum", "multi-krum", "norm-clip", "geometric-median")
ATTACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "sign-flip": {"attack_strength": 5.0},
    "scaled-noise": {},
    "label-flip": {},
    "backdoor": {"attack_strength": 5.0},
    "a-little-is-enough": {},
    "inner-product": {"attack_strength": 5.0},
}
ROUNDS, SEEDS, ATTACKERS = 20, (0, 1, 2), 0.2


def scenario(attack: str) -> Any:
    """The embedded digits at 12 sites of 40 images, of which 2 attack."""
    hostile = {"attack": attack, "attackers": ATTACKERS} | ATTACKS[attack]
    return (
        SCENARIOS.get("digits")
        .build()
        .change(
            partition=PerDomain(clients_per_domain=3, samples_per_client=40),
            backbone_options={"width": 8},
            rounds=ROUNDS,
            evaluate_every=ROUNDS,
            selection="last",
            protocols=("global",),
            **(hostile if attack != "none" else {}),
        )
    )


def play(rule: str, attack: str, seed: int) -> dict[str, Any]:
    """One run: accuracy of the last model, and how often the trigger makes it say ``TARGET``."""
    config, method = configure(rule, scenario(attack), seed=seed)
    session = prepare(config, method, None)
    for _ in range(ROUNDS):
        session.advance()
    score = session.record.metrics[-1]["scores"]["global"]["test"]["avg"]
    found = {"rule": rule, "attack": attack, "seed": seed, "accuracy": score}
    return found | {"fooled": fooled(session)}


def fooled(session: Session) -> float:
    """Per cent of test images of other classes that the trigger turns into the target class."""
    net = session.server.net.eval()
    load(net.state_dict(), session.server.shared)
    hits = total = 0
    with torch.no_grad():
        for domain in session.federation.domains.values():
            for x, y in domain.test.chunks():
                said = net(with_trigger(x)).logits.argmax(1)[y != TARGET]
                hits, total = hits + int((said == TARGET).sum()), total + len(said)
    return 100 * hits / total


def cached() -> dict[tuple[str, str, int], dict[str, Any]]:
    """Runs that are there already."""
    rows = map(json.loads, CACHE.read_text().splitlines()) if CACHE.exists() else ()
    return {(row["rule"], row["attack"], row["seed"]): row for row in rows}


def cell(rows: list[dict[str, Any]], key: str) -> str:
    """Mean over the seeds, with the half-width of its 95 % interval."""
    values = [row[key] for row in rows]
    told = f"{sum(values) / len(values):.1f}"
    return told if len(values) == 1 else f"{told} ± {seed_interval(values):.1f}"


def main() -> None:
    """Run what is missing, then write the table."""
    CACHE.parent.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    done = cached()
    for seed in SEEDS:
        for rule, attack in ((r, a) for a in ATTACKS for r in RULES):
            if (rule, attack, seed) not in done:
                done[rule, attack, seed] = row = play(rule, attack, seed)
                with CACHE.open("a") as file:
                    print(json.dumps(row), file=file, flush=True)
        write({key: row for key, row in done.items() if key[2] <= seed})


def write(done: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    """The table of all seeds that are complete."""
    seeds = [s for s in SEEDS if all((r, a, s) in done for r in RULES for a in ATTACKS)]
    first = "rule (95 %)" if len(seeds) > 1 else "rule"  # what stands behind a ±
    lines = [f"| {first} | {' | '.join(ATTACKS)} | trigger, no attack | trigger, backdoor |"]
    lines.append("|---|" + "---:|" * (len(ATTACKS) + 2))
    for rule in RULES:
        of = {a: [done[rule, a, s] for s in seeds] for a in ATTACKS}
        cells = [cell(of[a], "accuracy") for a in ATTACKS]
        cells += [cell(of[a], "fooled") for a in ("none", "backdoor")]
        lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    (ROOT / "docs" / "tables" / "attacks.md").write_text("\n".join([*lines, ""]))
    print(f"seeds {seeds}", *lines, sep="\n")


if __name__ == "__main__":
    main()
