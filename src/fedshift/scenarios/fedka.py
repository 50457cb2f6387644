"""FedKA (ACML 2022): labelled sources at the clients, an unlabelled target at the server.

Pixels / 255, Adam 3e-4 whose state is kept over rounds, batch 16, 512 samples (32 steps) per round,
200 rounds. The paper scores the target on the same inputs that voting uses, at the best round on
them; that selection is an oracle, and it is labelled as one.
"""

from __future__ import annotations

from typing import Any

from fedshift.data.dealing.splits import AllTest
from fedshift.scenarios.papers import leave_out, of_paper

DIGITS = ("mnist", "mnist_m", "syn", "svhn", "usps")
OFFICE = ("amazon", "caltech", "dslr", "webcam")
AMAZON = ("books", "dvd", "electronics", "kitchen")
COMMON: dict[str, Any] = {
    "unseen_split": AllTest(),
    "pixels": "unit",
    "rounds": 200,
    "batch_size": 16,
    "optimiser": "adam",
    "lr": 3e-4,
    "optimiser_state": "keep",
    "protocols": ("unseen",),
    "analyses": ("group-effect",),
    "selection": "oracle",
    "allow": ("client_val", "domain_ids", "server_unlabelled"),
}
IMAGES: dict[str, Any] = {"data_options": {"size": 28}, "backbone": "fedka-cnn", "steps": 32}
TEXTS: dict[str, Any] = {"data_options": {"form": "minilm384"}, "backbone": "mlp", "steps": 8}
LAPTOP: dict[str, Any] = {"rounds": 12, "evaluate_every": 3}


for _group, _data, _domains, _own, _laptop, _bench in (
    (
        *("digit-five", "digit-five", DIGITS, IMAGES, LAPTOP | {"lr": 1e-3}),
        {"rounds": 50, "lr": 3e-3, "lr_decay": 0.955, "evaluate_every": 2},  # to a tenth in all
    ),
    (
        *("office-caltech10", "office-caltech10", OFFICE, IMAGES, LAPTOP),
        {"rounds": 80, "evaluate_every": 4},
    ),
    ("amazon", "amazon-review", AMAZON, TEXTS, LAPTOP, {"evaluate_every": 10}),
):
    for _target in _domains:
        of_paper(
            f"fedka/{_group}/{_target.replace('_', '-')}",
            f"FedKA on {_data}: unlabelled target {_target} at the server.",
            "FedKA, ACML 2022",
            values=COMMON | _own | {"data": _data} | leave_out(_target, _domains),
            laptop=_laptop,
            bench=_bench,
        )
