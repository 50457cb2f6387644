"""F2DC (2026): several clients per domain with a share of its data each, one global model.

ResNet-10 from scratch, crop and flip, ImageNet normalisation, SGD 0.01 with momentum 0.9 and weight
decay 1e-5, batch 64, 10 epochs, 100 rounds. Their code flips digits too; here digits are not
flipped unless ``scenario.augment=f2dc``. Their model selection is not stated; here validation data
select.
"""

from __future__ import annotations

from typing import Any

from fedshift.data.dealing.partitions import F2DC
from fedshift.data.dealing.splits import EveryTenth, Given
from fedshift.scenarios.papers import of_paper

DIGITS = F2DC(clients={"mnist": 3, "usps": 6, "svhn": 6, "syn": 5}, percent=1.0)
OFFICE = F2DC(clients={"caltech": 3, "amazon": 2, "webcam": 2, "dslr": 3}, percent=20.0)
PACS = F2DC(clients={"photo": 2, "art_painting": 3, "cartoon": 2, "sketch": 3}, percent=30.0)
COMMON: dict[str, Any] = {
    "pixels": "imagenet",
    "backbone": "resnet10",
    "rounds": 100,
    "epochs": 10,
    "batch_size": 64,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "protocols": ("global",),
}
# Many short visits: of 18 to 36 images of digits, a client learns its own in an epoch or two.
LAPTOP: dict[str, Any] = {
    "data_options": {"size": 32},
    "backbone_options": {"width": 0.125},
    "rounds": 40,
    "steps": 4,
    "batch_size": 16,
    "lr": 0.05,
    "evaluate_every": 5,
}
# As many images per client as in the paper (SVHN two thirds), from the smaller digits at hand.
MORE = {"mnist": 15.0, "usps": 2.1, "svhn": 16.0, "syn": 10.0}
BENCH: dict[str, Any] = {"backbone_options": {"width": 0.25}, "evaluate_every": 1}


for _name, _data, _plan, _size, _split, _augment, _bench in (
    (
        *("digits", "digits-4", DIGITS, 32, Given(), "f2dc-digits"),
        {"partition": DIGITS.model_copy(update={"percent": MORE})}
        | {"backbone_options": {"width": 0.125}, "rounds": 40, "epochs": 2}
        | {"lr": 0.2, "lr_decay": 0.9185},  # to a thirtieth in all
    ),
    (
        *("office-caltech", "office-caltech10", OFFICE, 32, EveryTenth(), "f2dc"),
        {"rounds": 40, "epochs": 5, "evaluate_every": 2},
    ),
    (
        *("pacs", "pacs", PACS, 128, EveryTenth(), "f2dc"),
        {"data_options": {"size": 48}, "rounds": 30, "epochs": 5},
    ),
):
    _own = {"data": _data, "data_options": {"size": _size}, "domains": tuple(_plan.clients)}
    of_paper(
        f"f2dc/{_name}",
        f"F2DC on {_data}: {sum(_plan.clients.values())} clients with a share of one domain each; "
        "global model.",
        "F2DC, 2026",
        values=COMMON | _own | {"partition": _plan, "split": _split, "augment": _augment},
        laptop=LAPTOP,
        bench=BENCH | _bench,
    )
