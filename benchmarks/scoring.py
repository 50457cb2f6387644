"""What scoring costs: its share of a run, with every client scored and with models scored once.

    python benchmarks/scoring.py               # 1, 4 and 16 clients per domain
    python benchmarks/scoring.py 4             # one of them only

FedAvg on the embedded digits, every round scored under ``personal``. Clients of one domain have the
same model and the same test samples; "before", each of them scores it, "after", the first one does.
Rounds of both kinds alternate in one run, in seconds of the processor. The last column is the time
of scoring after over before, median and quartiles over pairs of neighbouring rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from unittest import mock

from fedshift.base.process import one_thread, tune_process
from fedshift.core.config import configure
from fedshift.engine.scored_once import ScoredOnce
from fedshift.experiment import session as sessions
from fedshift.experiment.scenario import scenario_from

PAIRS = 4
CLIENTS = (1, 4, 16)


def always(_once: ScoredOnce, _model: object, _samples: object, score):
    """In place of remembering: score again."""
    return score()


def timed(opened: sessions.Session) -> tuple[float, float]:
    """Seconds of the processor for scoring and for the whole of one round."""
    spent, evaluate = 0.0, sessions.evaluate

    def scoring(*args):
        nonlocal spent
        began = time.process_time()
        found = evaluate(*args)
        spent += time.process_time() - began
        return found

    with mock.patch.object(sessions, "evaluate", scoring):
        began = time.process_time()
        opened.advance()
        return spent, time.process_time() - began


def compare(clients: int) -> None:
    """Print both shares and their ratio for so many clients per domain."""
    changes = {"partition.clients_per_domain": clients, "partition.samples_per_client": 8}
    changes |= {"protocols": ("personal",)}
    changes |= {"rounds": 2 * PAIRS + 2, "evaluate_every": 1, "steps": 4}
    config, method = configure("fedavg", scenario_from("digits", None, None, changes))
    with one_thread():
        opened = sessions.prepare(config, method)
        timed(opened)
        before, after = [], []
        for _ in range(PAIRS):
            with mock.patch.object(ScoredOnce, "score", always):
                before.append(timed(opened))
            after.append(timed(opened))
    shares = [100 * sum(s for s, _ in rows) / sum(t for _, t in rows) for rows in (before, after)]
    ratios = [a / b for (a, _), (b, _) in zip(after, before, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    line = f"{clients:>3} clients per domain   before {shares[0]:4.1f} %   after {shares[1]:4.1f} %"
    print(f"{line}   {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


def main(args: list[str]) -> None:
    """Each number of clients."""
    tune_process()
    for clients in [int(a) for a in args] or CLIENTS:
        compare(clients)


if __name__ == "__main__":
    main(sys.argv[1:])
